"""What commands load that people wait for: a library that one of them does not use costs each of its runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import insert, update

from adserver.records.dataset_state import DatasetState
from adserver.store.schema import datasets, jobs
from adserver.store.tasks import TaskStore
from tests.adserver.job_world import ENCODED_MODEL, RECORDS, Site, plan_for, sealed
from tests.builders import NOW

OF = sealed(mechanism="gaussian", expires_at=1 << 39)
RUN = """
import json, sys
from adserver.cli.main import app
try:
    app(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps(sorted(sys.modules)))
"""
OF_SERVERS = {"grpc", "starlette", "uvicorn", "httpx", "opentelemetry.sdk", "tenacity", "fastapi"}
OF_TRAINING = {"torch", "onnxruntime", "numba", "sklearn", "pandas", "pyarrow", "matplotlib"}
OF_DEVICES = {"maskedlark.federated.strategies", "adserver.training.federated.submission"}
OF_DATABASES = {"sqlalchemy", "alembic", "sqlalchemy.dialects.postgresql"}
OF_MODELS = {"onnx", "google.protobuf"}
OF_TERMINALS = {"rich", "pygments"}
OF_QUERIES = {"maskedlark.releases.query", "maskedlark.releases.discovery", "maskedlark.releases.evaluation"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with a task, a dataset, and a job that is done."""
    site = Site(tmp_path / "data", OF)
    TaskStore(site.engine).add(OF.of.bundle, created_at=NOW)
    row = {
        "handle": bytes(16),
        "task_id": OF.of.task.task_id,
        "state": DatasetState.COMMITTED,
        "created_at": NOW,
        "received": RECORDS,
        "size": RECORDS,
        "dataset_id": OF.datasets[0].dataset_id,
    }
    site.submit(plan_for(OF, noise_multiplier=4.0))
    with site.engine.begin() as connection:
        connection.execute(insert(datasets).values(row))
        connection.execute(update(jobs).values(state="done", is_closed=True))
    site.engine.dispose()
    (tmp_path / "model.onnx").write_bytes(ENCODED_MODEL)
    return tmp_path / "data"


def loaded_by(*words: str, data: Path) -> set[str]:
    """The modules that a command has loaded at its end, in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *words, "--data", str(data), "--json"],
        capture_output=True, text=True, check=True, cwd=data.parent,
    )  # fmt: skip
    return set(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize("command", ["watch", "show", "list"])
def test_looking_at_a_job_loads_no_database_library_and_no_model(command: str, data: Path) -> None:
    loaded = loaded_by("job", command, data=data)
    assert "numpy" in loaded
    assert loaded & (OF_SERVERS | OF_TRAINING | OF_DEVICES | OF_DATABASES | OF_MODELS | OF_TERMINALS) == set()


def test_submitting_a_job_loads_nothing_of_servers_training_or_devices(data: Path) -> None:
    options = ["--model", "model.onnx", "--loss", "binary_cross_entropy_with_logits", "--rounds", "4"]
    noise = ["--batch-size", "20", "--learning-rate", "0.1", "--noise-multiplier", "4"]
    loaded = loaded_by("job", "submit", *options, *noise, data=data)
    assert OF_MODELS | {"sqlalchemy"} <= loaded
    not_used = OF_SERVERS | OF_TRAINING | OF_DEVICES | OF_TERMINALS | OF_QUERIES
    assert loaded & (not_used | {"sqlalchemy.dialects.postgresql"}) == set()


def test_sealing_a_dataset_loads_nothing_of_models_measurements_or_the_admin_api() -> None:
    script = """
import json, sys
import adserver.cli.dataset, adserver.messages.dataset, maskedlark.observability.tracing
from adserver.client.sealing import Sealing
print(json.dumps(sorted(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(json.loads(ran.stdout))
    rest = {f"adserver.client.{name}" for name in ("client", "far", "job", "measuring", "training")}
    not_used = OF_TRAINING | OF_DEVICES | rest | {"onnx", "scipy", "alembic", "starlette", "uvicorn", "httpx"}
    assert loaded & (not_used | OF_TERMINALS) == set()
