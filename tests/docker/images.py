"""`make images`: build the images of docker/compose.yaml, look at them, and train in them by one command.

Every container runs as compose.yaml says (user, read-only file system, no capabilities, volumes, mutual TLS),
but on this machine's own network, each server on a loopback address of its own. All stores are databases of
a PostgreSQL server that is started here. Any engine that takes Docker's options does:

    CONTAINER_ENGINE       the engine, with options of its own: docker (default), podman, "podman --root DIR"
    CONTAINER_RUN_OPTIONS  further options of its `run`
    CONTAINER_BUILD        what builds: by default the engine's `build`; or "buildah bud --isolation chroot"
    MASKEDLARK_BASE        another base than the one that compose.yaml gives by digest

Wall seconds are of this machine as busy as it is. Sizes are in million bytes, as the engine tells them.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sqlalchemy import make_url

from tests.docker.composed import ROOT, Composed, Container, interpolated
from tests.postgres import running_postgres

ENGINE: Final = tuple(shlex.split(os.environ.get("CONTAINER_ENGINE", "docker")))
RUN: Final = (*ENGINE, "run", *shlex.split(os.environ.get("CONTAINER_RUN_OPTIONS", "")))
BUILD: Final = tuple(shlex.split(os.environ.get("CONTAINER_BUILD", ""))) or (*ENGINE, "build")
PROJECT: Final = "maskedlark-images"
BARS_MB: Final = {"maskedlark/helper": 700, "maskedlark/adserver": 1_100, "maskedlark/browser-sim": 500}
"""The most that an image may add to its base."""
PARTIES: Final = {
    "maskedlark/helper": ("helper", "HELPER"),
    "maskedlark/adserver": ("adserver", "ADSERVER"),
    "maskedlark/browser-sim": ("browser_sim", ""),
}
_LABELS: Final = ("title", "version", "revision", "licenses", "vendor", "base.name")
_REVISION: Final = ("git", "describe", "--always", "--dirty", "--abbrev=40")
_LONGEST_S: Final = 1_800
_BETWEEN_S: Final = 0.2
_SOCKET: Final = ".s.PGSQL.5432"
_LOOK: Final = """
import importlib.util, json, os
from pathlib import Path
def is_writable(folder):
    try:
        (Path(folder) / "probe").write_text("")
    except OSError:
        return False
    return True
bill = json.loads(Path("/opt/maskedlark/bill-of-materials.cdx.json").read_text())
print(json.dumps({
    "user": os.getuid(),
    "parties": [name for name in ("helper", "adserver", "browser_sim") if importlib.util.find_spec(name)],
    "writable": [one for one in ("/", "/opt/maskedlark", "/home/lark", "/src", "/usr") if is_writable(one)],
    "torch": importlib.util.find_spec("torch") is not None,
    "postgresql": importlib.util.find_spec("psycopg") is not None,
    "version": bill["metadata"]["component"]["version"],
    "components": len(bill["components"]),
    "unlicensed": [one["name"] for one in bill["components"] if "licenses" not in one],
}))
"""


def tell(line: str) -> None:
    """Say what is being done."""
    sys.stderr.write(line + "\n")


def build(composed: Composed) -> None:
    """Every image as compose builds it."""
    told = subprocess.run([*_REVISION], cwd=ROOT, check=False, capture_output=True, text=True)
    revision = told.stdout.strip() or "unknown"
    for image, how in composed.builds().items():
        tell(f"building {image}")
        given = {**how["args"], "REVISION": revision}
        arguments = [f"--build-arg={name}={interpolated(value)}" for name, value in given.items()]
        target = ["--target", how["target"], "--tag", image, "--file", how["dockerfile"], "."]
        subprocess.run([*BUILD, *arguments, *target], cwd=ROOT, check=True, stdout=sys.stderr)


def asked(*words: str) -> str:
    """What the engine answers."""
    done = subprocess.run([*ENGINE, *words], check=True, capture_output=True, text=True, timeout=_LONGEST_S)
    return done.stdout


def moment(told: str) -> datetime:
    """A point of time as engines write it: 2026-11-22T12:02:30.797143348Z, or with blanks."""
    found = re.match(r"(\d{4}-\d\d-\d\d).(\d\d:\d\d:\d\d)", told)
    if found is None:
        raise SystemExit(f"{ENGINE[0]} told no time: {told}")
    return datetime.fromisoformat(f"{found[1]}T{found[2]}+00:00")


def megabytes(image: str) -> int:
    """The size of an image."""
    return round(int(asked("image", "inspect", "--format", "{{.Size}}", image)) / 1e6)


def looked_at(container: Container, base: str) -> dict[str, Any]:
    """What an image is and holds."""
    size, base_size = megabytes(container.image), megabytes(base)
    found = json.loads(
        subprocess.run(
            container.command(RUN, "python", "-c", _LOOK), check=True, capture_output=True, text=True
        ).stdout
    )
    labels = json.loads(asked("image", "inspect", "--format", "{{json .Config.Labels}}", container.image))
    party, _ = PARTIES[container.image]
    wrong = {
        "another user": found["user"] != 10001,
        "writable": bool(found["writable"]),
        "another party's code": found["parties"] != [party],
        "torch": found["torch"],
        "no PostgreSQL": party != "browser_sim" and not found["postgresql"],
        "labels": labels.get("org.opencontainers.image.version") != found["version"]
        or not {f"org.opencontainers.image.{one}" for one in _LABELS} <= labels.keys(),
        "too large": size - base_size > BARS_MB[container.image],
    }
    return {
        "mb": size,
        "mb_beside_base": size - base_size,
        "base_mb": base_size,
        **found,
        "wrong": [what for what, is_so in wrong.items() if is_so],
    }


class Fleet:
    """The containers that run; leaving it stops them and removes their volumes."""

    def __init__(self, composed: Composed, logs: Path) -> None:
        self._composed = composed
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.healthy_after_s: dict[str, float] = {}

    def __enter__(self) -> "Fleet":
        self._remove_volumes()
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(self._running):
            subprocess.run(
                [*ENGINE, "stop", "--time", "20", f"{PROJECT}-{name}"], check=False, capture_output=True
            )
        for process in self._running.values():
            process.wait(timeout=_LONGEST_S)
        self._remove_volumes()

    def run(self, name: str) -> str:
        """Run a service with everything before it, as `compose run` does; what it printed."""
        for needed in self._composed.before(name):
            if "healthcheck" in self._composed.services[needed]:
                self.start(needed)
            else:
                self._finish(needed)
        return self._finish(name)

    def start(self, name: str) -> None:
        """Start a server, and wait until its own health check passes."""
        container = self._composed.container(name)
        tell(f"{name} starts")
        with (self._logs / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(container.command(RUN), stdout=log, stderr=log)
        until = time.monotonic() + _LONGEST_S
        check = [*ENGINE, "exec", container.label, *container.healthcheck]
        while subprocess.run(check, check=False, capture_output=True).returncode:
            if self._running[name].poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{name} did not start:\n{self.log(name)}")
            time.sleep(_BETWEEN_S)
        started = asked("inspect", "--format", "{{.State.StartedAt}}", container.label)
        self.healthy_after_s[name] = round(time.time() - moment(started).timestamp(), 1)

    def log(self, name: str) -> str:
        """The end of a server's log."""
        return (self._logs / f"{name}.log").read_text()[-4000:]

    def stop(self, name: str) -> int:
        """Stop a server, and give its status."""
        asked("stop", "--time", "30", f"{PROJECT}-{name}")
        return self._running.pop(name).wait(timeout=_LONGEST_S)

    def _finish(self, name: str) -> str:
        tell(f"{name} runs")
        command = self._composed.container(name).command(RUN)
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_LONGEST_S)
        if done.returncode:
            servers = "\n".join(self.log(one) for one in self._running)
            raise SystemExit(f"{name} ended with {done.returncode}: {done.stderr[-4000:]}\n{servers}")
        return done.stdout

    def _remove_volumes(self) -> None:
        for volume in self._composed.volumes:
            with suppress(subprocess.CalledProcessError):
                asked("volume", "rm", "--force", volume)


@contextmanager
def on_postgresql() -> Iterator[Composed]:
    """The services, with a database each in a server of this machine, whose socket they see as /postgres."""
    with running_postgres() as server:

        def database() -> str:
            url = make_url(server.new_database()).update_query_dict({"host": "/postgres"})
            return url.render_as_string(hide_password=False)

        adserver = {"ADSERVER_DATABASE": database()}
        yield Composed(
            project=PROJECT,
            variables={
                "helper-0": {"HELPER_DATABASE": database()},
                "helper-1": {"HELPER_DATABASE": database()},
                **dict.fromkeys(("adserver", "train-task", "train"), adserver),
            },
            mounts=[f"{server.url.query['host']}/{_SOCKET}:/postgres/{_SOCKET}"],
        )


def trained() -> dict[str, Any]:
    """Train as compose's one command does, from nothing; then start a helper once more."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(TemporaryDirectory(prefix="maskedlark-images-")))
        fleet = stack.enter_context(Fleet(stack.enter_context(on_postgresql()), logs))
        began = time.monotonic()
        shown = fleet.run("train")
        took = time.monotonic() - began
        first = dict(fleet.healthy_after_s)
        stopped = {name: fleet.stop(name) for name in ("helper-0", "adserver")}
        fleet.start("helper-0")
        return {
            "healthy_after_s": first,
            "healthy_again_after_s": fleet.healthy_after_s["helper-0"],
            "train_s": round(took, 1),
            "stopped_with": stopped,
            "job": shown.strip().splitlines()[:40],
        }


def main() -> None:
    """Build, look, train; print one JSON object, and end with status 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--built", action="store_true", help="the images are built already")
    arguments = parser.parse_args()
    composed = Composed(project=PROJECT)
    if not arguments.built:
        build(composed)
    base = interpolated(next(iter(composed.builds().values()))["args"]["BASE"])
    by_image = {one["image"]: name for name, one in composed.services.items()}
    images = {image: looked_at(composed.container(by_image[image]), base) for image in PARTIES}
    print(json.dumps({"images": images, **trained()}, indent=1))
    sys.exit(any(one["wrong"] for one in images.values()))


if __name__ == "__main__":
    main()
