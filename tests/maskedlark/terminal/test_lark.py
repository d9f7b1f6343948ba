"""`lark`: every party's commands under one name, and the extras that bring what they need."""

import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from adserver.cli import quickstart
from docker.requirements import requirements
from maskedlark.terminal.lark import app

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.parametrize(
    ("command", "shows"),
    [
        ("demo", "sample medical records"),
        ("quickstart", "lark.toml"),
        ("adserver", "quickstart"),
        ("helper", "keygen"),
        ("browser", "describe"),
    ],
)
def test_each_party_is_found_under_its_name(command: str, shows: str) -> None:
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert told.exit_code == 0
    assert shows in told.output


def test_a_command_of_a_party_runs_below_lark(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["helper", "keygen", "--data", str(tmp_path), "--name", "operator A"])
    assert made.exit_code == 0, made.output
    assert (tmp_path / "keys.json").exists()


def test_the_first_demo_prints_json_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickstart, "_run_command", lambda *_: typer.echo("{}"))
    told = CliRunner().invoke(app, ["demo", str(tmp_path / "demo"), "--json"])
    assert (told.exit_code, told.output) == (0, "{}\n")
    assert (tmp_path / "demo" / "lark.toml").exists()


def test_a_column_that_is_measured_is_said_to_be_no_feature(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text(
        "paid,bought,pages\n" + "".join(f"{row}.5,{row % 2},{row % 7}\n" for row in range(60))
    )
    options = [
        "--csv",
        str(tmp_path / "shop.csv"),
        "--label",
        "bought",
        "--value",
        "paid",
        "--value",
        "bought",
    ]
    told = CliRunner().invoke(app, ["quickstart", "new", str(tmp_path / "shop"), *options])
    assert [line for line in told.output.splitlines() if "is measured" in line] == [
        "'paid' is measured, so nobody sees it, and the model does not learn from it"
    ]


def test_the_extra_all_brings_every_party_and_every_option_but_ray() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    others = [one for one in extras if one not in {"all", "dev", "ray", "site"}]
    assert requirements(PYPROJECT, ["all"]) == requirements(PYPROJECT, others)
