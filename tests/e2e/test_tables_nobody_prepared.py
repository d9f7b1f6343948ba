"""Tables that nobody prepared, through real processes: each ends with a model or with one line of remedy.

The rows of the table add up in every summary, of reports and of people's devices.
"""

import csv
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from adserver.quickstart.running import command
from tests.adserver.quickstart.tables import CASES, HEADER, ROWS, text, visits, with_gaps
from tests.adserver.quickstart.test_project import change

IN_EVERY_SUITE = "gaps"
"""The table whose rows have the most ways to go; minutes are measured by device, too."""
MEASURED = ("--value", "minutes", "--key", "device")
SUMMARY = {"rows", "auc", "base_rate", "epsilon", "collusion_epsilon", "accuracy", "loss", "warnings"}


def quickstart(name: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [command("adserver"), "quickstart", name, *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def make_project(folder: Path, content: bytes, *measured: str) -> "subprocess.CompletedProcess[str]":
    """A project of a table, up to `check`; what the command that refused said, or `check`."""
    (folder / "visits.csv").write_bytes(content)
    made = quickstart("new", folder / "play", "--csv", folder / "visits.csv", "--label", "bought", *measured)
    if made.returncode != 0:
        return made
    change(folder / "play", "# rounds = 120", "rounds = 3")
    return quickstart("check", folder / "play")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.features is None])
def test_a_table_from_which_nothing_can_be_learned_ends_with_one_line(name: str, tmp_path: Path) -> None:
    refused = make_project(tmp_path, CASES[name].content)
    assert refused.returncode != 0
    [line] = refused.stderr.splitlines()
    assert CASES[name].refused in line
    assert not (tmp_path / "play" / "parties").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == IN_EVERY_SUITE else pytest.mark.long)
        for name, case in CASES.items()
        if case.features is not None
    ],
)
def test_a_table_becomes_a_model_and_its_rows_add_up(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    is_measured = name == IN_EVERY_SUITE
    checked = make_project(tmp_path, case.content, *(MEASURED if is_measured else ()))
    assert checked.returncode == 0, checked.stderr
    ran = quickstart("run", tmp_path / "play", "--json", *(("--compare-plain",) if is_measured else ()))
    assert ran.returncode == 0, ran.stderr
    summary = json.loads((tmp_path / "play" / "runs" / "1" / "summary.json").read_text())
    assert summary == json.loads(ran.stdout)
    assert summary.keys() >= SUMMARY
    rows = summary["rows"]
    assert rows["read"] == ROWS
    assert rows["reported"] + rows["panel"] + sum(rows["left_out"].values()) == ROWS
    assert sum(rows["left_out"].values()) == case.unlabelled
    assert 0 < summary["base_rate"] < 1
    assert 0 < summary["epsilon"] < summary["collusion_epsilon"]
    assert Path(summary["model"]).is_file()
    assert 1 <= summary["chosen_round"] <= summary["rounds"] == 3
    assert summary["loss"] <= summary["last_loss"]
    if is_measured:
        check_later_dates(summary["model_of_columns"], tmp_path)
        assert 0 < summary["plain"]["auc"] <= 1
        assert 0 < summary["plain"]["panel_alone"]["auc"] <= 1
        measured = summary["measured"]
        assert 0 < measured["epsilon"] <= 0.5
        with Path(measured["csv"]).open(encoding="utf-8", newline="") as file:
            found = {row["device"]: row for row in csv.DictReader(file)}
        assert sorted(found) == ["(all)", "(rest)", "desktop", "other", "phone", "tablet"]
        # Rows without minutes are reported, and its mean is over the others.
        assert "mean of minutes over rows with minutes value" in found["phone"]
        # What was forecast is what came.
        forecast = re.search(r"minutes .* ± ([0-9.,]+) ", checked.stdout)
        assert forecast is not None, checked.stdout
        error = float(found["phone"]["minutes standard_error"])
        assert float(forecast[1].replace(",", "")) == pytest.approx(2.5758 * error, rel=0.01)
        both = summary["epsilon_with_measurement"]
        assert summary["epsilon"] < both < summary["epsilon"] + measured["epsilon"]


def check_later_dates(model: str, folder: Path) -> None:
    """Dates that do not show their order are read in that of the table that the encoder was fitted to."""
    seen = ("03/04/2026", "2026-04-03", "04/13/2026", "13/04/2026")
    (folder / "later.csv").write_text(
        "device,minutes,pages,seen\n" + "".join(f"phone,9.5,3,{one}\n" for one in seen)
    )
    scored = subprocess.run(
        [
            *(command("adserver"), "model", "predict", model, "--csv", folder / "later.csv"),
            *("--out", folder / "scored.csv"),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert scored.returncode == 0, scored.stderr
    with (folder / "scored.csv").open(encoding="utf-8", newline="") as file:
        day_first, iso, month_first, _ = csv.DictReader(file)
    assert day_first == {**iso, "seen": seen[0]}
    assert 0 < float(iso["chance of yes"]) < 1
    assert month_first["not scored because"].startswith(
        "column 'seen': it holds a date with the month first, but this column's dates with slashes"
    )


@pytest.mark.slow
def test_a_table_without_a_label_is_measured_whole_and_its_sums_are_near_the_truth(tmp_path: Path) -> None:
    header, *lines = with_gaps().splitlines(keepends=True)
    visits_of = header + "".join(10 * lines)
    (tmp_path / "visits.csv").write_text(visits_of)
    table, play = ("--csv", tmp_path / "visits.csv"), tmp_path / "play"
    made = quickstart("new", play, *table, *MEASURED)
    assert made.returncode == 0, made.stderr
    # All that helpers grant; no row is cut off
    text = re.sub(r"most = [0-9.]+}", "most = 70}", (play / "lark.toml").read_text())
    text = text.replace("\nepsilon = 4 ", "\nepsilon = 8 ").replace("\nepsilon = 2 ", "\nepsilon = 7 ")
    (play / "lark.toml").write_text(text.replace("collusion_epsilon = 8 ", "collusion_epsilon = 16 "))
    ran = quickstart("run", play, "--json")
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout)
    assert summary == json.loads((play / "runs" / "1" / "summary.json").read_text())
    assert summary["rows"] == {"read": 10 * ROWS, "reported": 10 * ROWS, "panel": 0, "left_out": {}}
    assert {"csv", "json", "png"} <= summary["measured"].keys()
    rows = list(csv.DictReader(visits_of.splitlines()))
    with Path(summary["measured"]["csv"]).open(encoding="utf-8", newline="") as file:
        found = {row["device"]: row for row in csv.DictReader(file)}
    for device in ("desktop", "phone", "tablet", "(all)"):
        of = [row for row in rows if device in (row["device"], "(all)")]
        minutes = sum(float(row["minutes"] or 0) for row in of)
        for name, truth in (("count", len(of)), ("minutes", minutes)):
            error = float(found[device][f"{name} standard_error"])
            assert error < 0.02 * truth
            # Six standard errors: noise alone fails this once in 500 million times
            assert float(found[device][f"{name} value"]) == pytest.approx(truth, abs=6 * error)


@pytest.mark.slow
def test_the_most_that_check_lets_a_run_ask_is_granted(tmp_path: Path) -> None:
    assert make_project(tmp_path, text(visits()).encode(), *MEASURED).returncode == 0
    play = tmp_path / "play"
    change(play, "epsilon = 0.5 ", "epsilon = 2.5 ")
    change(play, "epsilon = 3 ", "epsilon = 3.9 ")
    refused = quickstart("check", play)
    assert refused.returncode == 1
    left = re.search(r"next to \[measure\] epsilon 2.5 the budgets, .*, leave it ([0-9.]+):", refused.stderr)
    assert left is not None, refused.stderr
    # Much more than the 1.5 that the sum of epsilons would leave, and the rest of the budget
    assert float(left[1]) > 2.5
    change(play, "epsilon = 3.9 ", f"epsilon = {left[1]} ")
    ran = quickstart("run", play, "--json")
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout)
    assert 0.95 * float(left[1]) < summary["epsilon"] <= float(left[1])
    assert 3.8 < summary["epsilon_with_measurement"] <= 4


@pytest.mark.long  # the page on quickstart, which every run reads, does the same without gaps
def test_peoples_devices_train_a_model_of_raw_columns_and_their_rows_add_up(tmp_path: Path) -> None:
    people = [(f"p{row % 40}", *cells) for row, cells in enumerate(csv.reader(with_gaps().splitlines()[1:]))]
    people[5] = ("", *people[5][1:])
    (tmp_path / "visits.csv").write_text(text(people, header=("who", *HEADER)))
    table, play = ("--csv", tmp_path / "visits.csv", "--label", "bought"), tmp_path / "play"
    assert quickstart("new", play, *table, "--person", "who").returncode == 0
    change(play, "rounds = 20", "rounds = 2")
    change(play, "min_batch_size = 100", "min_batch_size = 20")
    ran = quickstart("run", play, "--json")
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout)
    rows = summary["rows"]
    assert rows["read"] == ROWS
    assert rows["reported"] + rows["panel"] + sum(rows["left_out"].values()) == ROWS
    assert rows["left_out"] == {
        "column 'bought': no label": CASES["gaps"].unlabelled,
        "column 'who': no person": 1,
    }
    assert summary["devices"] == 32
    assert 0 < summary["epsilon"] < summary["collusion_epsilon"] <= 8
    assert 0 < summary["auc"] < 1
    assert summary["mean_over_rate"] > 0
    session = onnxruntime.InferenceSession(summary["model_of_columns"])
    cells = {
        one.name: np.array([[np.nan if one.type == "tensor(double)" else ""]]) for one in session.get_inputs()
    }
    assert cells.keys() == {"device", "minutes", "pages"}
    assert session.run(None, cells)[0].shape == (1, 2)
