import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from maskedlark.errors import InvalidTask
from maskedlark.federated.strategies import STRATEGIES
from tests.adserver.simulating.test_example_files import write_mnist

COMMON = [
    "federated",
    "simulate",
    "--devices",
    "12",
    "--shard-size",
    "4",
    "--rounds",
    "4",
    "--sampling-rate",
    "0.5",
    "--eval-every",
    "2",
]


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    write_mnist(tmp_path, packed=True)
    return tmp_path


def run(mnist: Path, *options: str) -> str:
    result = CliRunner().invoke(app, [*COMMON, "--examples", str(mnist), *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_every_strategy_runs_and_says_what_it_costs(mnist: Path, strategy: str) -> None:
    noise = "0" if strategy == "line" else "1.0"
    told = json.loads(run(mnist, "--strategy", strategy, "--noise-multiplier", noise, "--json"))
    assert told["strategy"] == strategy
    assert [one["round"] for one in told["curve"]] == [0, 2, 4]
    assert told["unit"] == ("event" if strategy == "line" else "user")
    assert told["epsilon"] == 1.0 if strategy == "line" else told["epsilon"] < told["epsilon_2016"]


def test_a_table_a_csv_and_a_picture_come_out(mnist: Path, tmp_path: Path) -> None:
    shown = run(mnist, "--out", str(tmp_path / "curve.csv"), "--out", str(tmp_path / "curve.png"))
    assert "the result is not private" in shown
    assert "accuracy" in shown
    assert len(list(csv.DictReader((tmp_path / "curve.csv").read_text().splitlines()))) == 5
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_settings_of_a_file_hold_where_no_option_is_given(mnist: Path, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(
        json.dumps({"rounds": 9, "cover_rate": 0.0, "bound": {"clip_norm": 3.0, "is_per_layer": True}})
    )
    told = json.loads(run(mnist, "--settings", str(path), "--hidden", "5", "--json"))
    assert told["rounds"] == 4
    assert {one["clip_norm"] for one in told["curve"]} == {3.0}
    assert {one["covers"] for one in told["curve"]} == {0}


def test_the_same_seed_gives_the_same_result(mnist: Path) -> None:
    told = [
        json.loads(run(mnist, "--json", "--noise-multiplier", "1", "--seed", seed))
        for seed in ("1", "1", "2")
    ]
    scores = [[(one["accuracy"], one["loss"]) for one in run_["curve"]] for run_ in told]
    assert scores[0] == scores[1] != scores[2]


def test_a_csvs_users_are_the_devices(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    rows = [f"{place},u{place % 7},{place % 2}" for place in range(100)]
    path.write_text("\n".join(["pages,who,bought", *rows]))
    told = json.loads(run(path, "--label", "bought", "--user", "who", "--json"))
    assert told["devices"] == 7


@pytest.mark.parametrize(
    "options",
    [
        ["--strategy", "sgd"],
        ["--sampling-rate", "1.5"],
        ["--clip-norm", "0"],
        ["--shard-size", "30"],
        ["--out", "curve.pdf"],
        ["--strategy", "line", "--noise-multiplier", "1"],
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_name(mnist: Path, options: list[str]) -> None:
    with pytest.raises(InvalidTask):
        run(mnist, *options)
