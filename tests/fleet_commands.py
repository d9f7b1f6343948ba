"""What operators and browsers type at a running fleet: a task, its reports, a dataset, a model, a job."""

from pathlib import Path
from shlex import split
from typing import Any

from docs.tutorial.fleet import ORIGIN, Fleet


def create_task(fleet: Fleet, name: str, options: str) -> str:
    """Create a task with further options of `adserver task create`; its id in hexadecimal."""
    return fleet.adserver("task", "create", "--name", name, "--origin", ORIGIN, *split(options)).strip()


def send_reports(fleet: Fleet, task: str, options: str, *, to: str | None = None) -> Any:
    """Let browsers seal and send reports of a source, over gRPC unless told otherwise; what `browser-sim run`
    says of them.
    """
    url = f"http://{fleet.http}/v1/tasks/{task}"
    return fleet.browsers("--task", url, "--to", to or fleet.grpc, *split(options))


def seal(fleet: Fleet, task: str, options: str = "") -> Any:
    """Seal what waits; the dataset as `adserver dataset seal --json` shows it."""
    return fleet.adserver_json("dataset", "seal", "--task", task, *split(options))


def create_model(fleet: Fleet, path: Path, layers: tuple[int, ...], seed: int = 1) -> Path:
    """Write a dense ReLU network."""
    widths = ",".join(map(str, layers))
    fleet.run("adserver", "model", "create", str(path), "--layers", widths, "--seed", str(seed))
    return path


def submit(fleet: Fleet, options: str) -> Any:
    """Submit a job, or wait for its end too; as `adserver job submit --json` shows it."""
    return fleet.adserver_json("job", "submit", *split(options), options=False)
