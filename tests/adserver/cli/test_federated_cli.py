"""`adserver job plan` and `submit` with --strategy: dense networks, and ONNX graphs for torch."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.records.federated_plan import FederatedPlan
from adserver.store.job_files import JobFiles
from maskedlark.errors import InvalidTask
from maskedlark.federated.graph_model import GraphModel
from maskedlark.releases.instructions import read_instructions
from maskedlark.reports.updates import UpdateForm
from tests.federated_site import SETTINGS, Site
from tests.maskedlark.autodiff.graph_files import dense_file

FILE = dense_file(4, 3, 2)
PARAMETERS = 4 * 3 + 3 + 3 * 2 + 2


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path, {"updates": UpdateForm(num_parameters=PARAMETERS)})
    monkeypatch.setenv("ADSERVER_DATA", str(tmp_path / "adserver"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.json").write_text(json.dumps(SETTINGS))
    (tmp_path / "net.onnx").write_bytes(FILE)
    return made


def adserver(command: str) -> str:
    settings = "--strategy dp-fedavg --settings settings.json"
    result = CliRunner().invoke(app, f"job {command} {settings}".split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_graph_is_planned_and_submitted_with_its_own_weights(site: Site) -> None:
    planned = json.loads(adserver("plan --model net.onnx --json"))
    assert planned["parameters"] == PARAMETERS
    assert site.store.all() == ()
    job_id = bytes.fromhex(adserver("submit --model net.onnx").strip())
    plan = site.store.get(job_id).plan
    assert isinstance(plan, FederatedPlan)
    _, model = read_instructions(plan.job)
    assert isinstance(model, GraphModel)
    assert model.size == PARAMETERS
    assert JobFiles(site.engine, site.folder / "adserver", job_id).model() == FILE


def test_a_dense_network_is_submitted_by_its_widths(site: Site) -> None:
    plan = site.store.get(bytes.fromhex(adserver("submit --layers 4,3,2").strip())).plan
    assert isinstance(plan, FederatedPlan)
    assert read_instructions(plan.job).model.widths == (4, 3, 2)


@pytest.mark.parametrize("given", ["", "--model net.onnx --layers 4,3,2"])
def test_either_widths_or_a_graph_are_given(site: Site, given: str) -> None:
    with pytest.raises(InvalidTask, match="either"):
        adserver(f"submit {given}")
    assert site.store.all() == ()
