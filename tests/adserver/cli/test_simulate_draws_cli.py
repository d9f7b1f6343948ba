import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from maskedlark.errors import InvalidTask
from tests.adserver.simulating.test_example_files import write_mnist


def run(folder: Path, *options: str) -> str:
    command = ["federated", "simulate-draws", "--examples", str(folder), "--each", "4", "--passes", "3"]
    result = CliRunner().invoke(app, [*command, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    write_mnist(tmp_path, packed=True)
    return tmp_path


def test_both_epsilons_are_shown(mnist: Path) -> None:
    told = json.loads(run(mnist, "--epsilon", "2", "--json"))
    assert told["updates"] == 30
    assert told["epsilon"] == 2
    assert told["epsilon_of_a_whole_update"] == 2 * (6 + 1) * 4
    whole = json.loads(run(mnist, "--epsilon", "2", "--unit", "model", "--json"))
    assert whole["epsilon_of_a_whole_update"] == 2


def test_updates_in_flight_at_the_end_do_not_return(mnist: Path) -> None:
    assert json.loads(run(mnist, "--in-flight", "5", "--json"))["updates"] == 25


def test_one_instance_learns_and_has_no_spread(mnist: Path) -> None:
    told = json.loads(run(mnist, "--instances", "1", "--json"))
    assert told["variance_over_its_law"] is None
    assert "accuracy" in run(mnist)


@pytest.mark.parametrize("options", [["--instances", "0"], ["--epsilon", "0"], ["--each", "100"]])
def test_a_setting_out_of_range_is_refused(mnist: Path, options: list[str]) -> None:
    with pytest.raises(InvalidTask):
        run(mnist, *options)
