"""A run counts every row, goes on where it was interrupted, and says what refused in one line."""

import errno
import json
import re
import subprocess
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from torch import nn
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.cli.quickstart_output import describe_result, show_comparison
from adserver.quickstart import commands as module
from adserver.quickstart.commands import ProjectCommands
from adserver.quickstart.device_recipe import DeviceRecipe, _Pace
from adserver.quickstart.finishing import ModelFinisher
from adserver.quickstart.project import Project, new_project
from adserver.quickstart.recipe import Recipe
from adserver.quickstart.run_states import describe_runs
from adserver.quickstart.running import RunningFleet
from adserver.quickstart.runs import RunOptions, RunResult, Steps
from adserver.training import plain_twin
from adserver.training.eval_set import read_eval_set
from adserver.training.inference import evaluate, predict
from adserver.training.paired_comparison import compare_scores
from adserver.training.pipeline import LOSS_IS, notes_of
from adserver.training.plain_twin import PanelAlone, cross_fit_panel
from browser_sim.source import RowCounts
from browser_sim.sources.table import TableSettings, load_table
from maskedlark.canonical import encode
from maskedlark.encoding.encoder import Encoder, NumberColumn
from maskedlark.encoding.table import parse_table
from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from tests.adserver.quickstart.test_project import SETTINGS, change
from tests.torch_models import export

SENT = {
    "read": 500, "accepted": 380, "panel": 100, "left_out": {"column 'y': no label": 7}, "rejected":
    {"malformed": 2},
    "no_consent": 6, "over_cap": 4, "too_late": 1,
}  # fmt: skip
LOGITS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
TASK, JOB = "a" * 64, "b" * 32
ENCODER = Encoder(columns=(NumberColumn(name="pages", first=0, missing=0, edges=(3.0,)),))


class Commands:
    """Stands in for every command: answers by its words, and notes what was run."""

    def __init__(self) -> None:
        self.mean_over_rate: float | None = 0.5
        self.advice = ["off"]
        self.ran: list[str] = []
        self.jobs: list[dict[str, Any]] = []
        self.measured: dict[str, Any] = {}
        self.rounds_done = 0
        self.shown: dict[str, Any] = {}
        self.devices = {"devices": 80, "examples": 160, "rounds": 5, "reasons": {"round_over": 1}}
        self.asked: list[tuple[str, ...]] = []
        self.sent_table, self.admitted = "", 378
        self.failing: dict[str, BaseException | subprocess.CompletedProcess[str]] = {}
        self.chosen = 120
        self.calibrated: set[str] = set()
        self.tested: dict[str, dict[str, float]] = {}
        self.job = {"state": "done", "rounds_done": 120, "epsilon_spent": 2.5, "collusion_epsilon_spent": 4.0}

    def answer(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        name = " ".join((program, *arguments[:2]))
        name = f"{program} {arguments[0]}" if program == "browser-sim" else name
        if arguments[:2] == ("model", "create"):
            Path(arguments[2]).write_bytes(dense_network([30, 1], "relu", seed=1, final="linear"))
        if arguments[:2] == ("model", "export") and arguments[4].endswith("/trained.onnx"):
            Path(arguments[4]).write_bytes(dense_network([30, 1], "relu", seed=7, final="linear"))
        if "--fit" in arguments:
            Path(arguments[arguments.index("-o") + 1]).write_bytes(encode(ENCODER))
        if "--user" in arguments and program == "browser-sim" and arguments[0] == "run":
            self.sent_table = Path(arguments[arguments.index("--csv") + 1]).read_text()
        panel = arguments[arguments.index("-o") + 1] if "-o" in arguments else ""
        if "--encoder" in arguments and panel.endswith("panel.npz"):
            np.savez(panel, features=np.zeros((40, 1), np.uint8), labels=np.arange(40) % 2)
        if "--holdout" in arguments:
            drawn = np.random.default_rng(5).integers(0, 256, (300, 30), np.uint8)
            labels = (drawn[:, 0] < 90).astype(np.int64)
            # Of a table the first 100 rows, below the header
            lines, panel = np.arange(2, 102), arguments[arguments.index("--holdout") + 1]
            np.savez(panel, features=drawn[:100], labels=labels[:100], lines=lines)
            if "--train-out" in arguments:
                np.savez(
                    arguments[arguments.index("--train-out") + 1], features=drawn[100:], labels=labels[100:]
                )
        self.ran.append(name)
        self.asked.append(arguments)
        fails = self.failing.get(name)
        if isinstance(fails, BaseException):
            raise fails
        if fails is not None:
            return fails
        if arguments[:2] == ("model", "calibrate"):
            self.calibrated.add(Path(arguments[4]).name)
        said = {
            "browser-sim describe": {"features": 30, "labels": {"benign": 1, "malignant": 1}},
            "adserver task create": {"task_id": TASK},
            "browser-sim run": SENT,
            "adserver dataset list": [],
            "adserver dataset seal": {
                "dataset_id": "d",
                "task_id": TASK,
                "state": "committed",
                "admitted": self.admitted,
            },
            "browser-sim encode": {
                "rows": 40,
                "features": 1,
                "classes": ["0", "1"],
                "numbers": 0,
                "categories": 1,
                "ids": 0,
            },
            "adserver aggregate --dataset": self.measured,
            "adserver budget --dataset": [{"ad_server": {"spent": 2.6}, "colluding": {"spent": 4.3}}],
            "adserver job list": self.jobs,
            "adserver job submit": {"job_id": JOB},
            "adserver job show": {"rounds": 5, "rounds_done": self.rounds_done, **self.shown},
            "browser-sim devices": self.devices,
            "adserver job watch": self.job,
            "adserver model show": {"parameters": 31},
            "adserver model export": {"rounds_done": self.chosen},
            "adserver model calibrate": {"rounds_done": self.chosen, "scale": 1.25, "shift": -0.5},
            "adserver model evaluate": {
                **self.tested.get(
                    Path(arguments[2] if len(arguments) > 2 else "").name, {"loss": 0.4, "auc": 0.7}
                ),
                "accuracy": 0.8,
                "base_rate": 0.3,
                "examples": 100,
                "mean_over_rate": 1.0
                if {Path(one).name for one in arguments} & self.calibrated
                else self.mean_over_rate,
                "warnings": self.advice,
            },
        }.get(name)
        return subprocess.CompletedProcess(name, 0, json.dumps(said), "")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return new_project(tmp_path / "play", SETTINGS)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands()
    monkeypatch.setattr(ProjectCommands, "end", lambda _self, *words: made.answer(*words))
    monkeypatch.setattr(plain_twin, "RATES", (0.1,))
    return made


def result_of(result: RunResult) -> dict[str, str]:
    """What is printed of a run, by the name at the beginning of each line."""
    lines = describe_result(result, Path("play/runs/1"))
    return dict(re.split(" {2,}", line, maxsplit=1) for line in lines)


def comparison_of(result: RunResult, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The cells of each row that is printed of a comparison, without the head."""
    capsys.readouterr()
    show_comparison(result)
    _nothing, _head, *rows = capsys.readouterr().out.splitlines()
    return [re.split(" {2,}", row.rstrip()) for row in rows]


def test_the_result_of_a_run_fits_a_screen_and_names_ids_as_lists_do(
    project: Project, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = Recipe(project, lambda _: None, options=RunOptions(name="wide", compare_plain=True)).run()
    lines = describe_result(trained, Path("play/runs/1"))
    # And a line apart, with a head
    assert len(lines) + 2 + len(comparison_of(trained, capsys)) <= 14
    shown = result_of(trained)
    assert list(shown)[:3] == ["verdict", "AUC", "base rate"]
    assert shown["base rate"] == "0.3 of 'malignant'"
    assert shown["weights"] == "of round 120 of 120"
    assert shown["rows"].startswith(
        "500 read, 378 reported, 100 in the panel, 22 left out (column 'y': no label: 7; "
    )
    assert shown["run"] == f"1 wide, task {TASK[:12]}, dataset d, job {JOB[:12]}"
    assert shown["results"].startswith("play/runs/1; ")
    assert "mean over rate" not in "".join(lines)


def test_rows_add_up_and_the_summary_has_what_a_reader_needs(project: Project, commands: Commands) -> None:
    told: list[str] = []
    trained = Recipe(project, told.append).run()
    assert [one.split(":")[0] for one in told[-2:]] == ["the rounds are done", "warning"]
    assert told[-1] == "warning: off"
    summary = json.loads((project.folder / "runs" / "1" / "summary.json").read_text())
    assert summary == {**asdict(trained), "warnings": ["off"], "leaks": []}
    rows = summary["rows"]
    assert rows["left_out"] == {
        "column 'y': no label": 7,
        "no consent": 6,
        "over cap": 4,
        "too late": 1,
        "the ad server rejected: malformed": 2,
        "a helper dropped the report": 2,
    }
    assert rows["reported"] + rows["panel"] + sum(rows["left_out"].values()) == rows["read"]
    names = ("auc", "base_rate", "epsilon", "collusion_epsilon")
    assert [summary[name] for name in names] == [0.7, 0.3, 2.5, 4.0]
    assert summary["predicts"] == "malignant"
    assert summary["encoder"] == ""
    assert not (project.folder / "runs" / "1" / "progress.json").exists()


def test_a_model_of_two_classes_is_calibrated_on_the_panel_and_what_it_was_before_is_told(
    project: Project, commands: Commands
) -> None:
    trained = Recipe(project, lambda _: None).run()
    assert commands.calibrated == {"trained.onnx"}
    assert "--weights best" in asked(commands, "adserver model calibrate")
    before = {"scale": 1.25, "shift": -0.5, "loss": 0.4, "accuracy": 0.8, "mean_over_rate": 0.5}
    assert (trained.calibration, trained.mean_over_rate) == (before, 1.0)


@pytest.mark.parametrize(("mean_over_rate", "is_calibrated"), [(0.5, True), (0.95, False)])
def test_a_loss_is_called_calibrated_where_it_is(
    mean_over_rate: float, *, is_calibrated: bool, project: Project, commands: Commands
) -> None:
    commands.mean_over_rate = mean_over_rate
    shown = result_of(Recipe(project, lambda _: None).run())
    assert shown["loss"] == f"0.4{', calibrated' if is_calibrated else ''}; accuracy 0.8"
    [run] = describe_runs(project)
    assert run["is_calibrated"] is is_calibrated
    told = CliRunner().invoke(app, ["quickstart", "status", str(project.folder)], env={"COLUMNS": "250"})
    assert ("0.4, calibrated" in told.output) is is_calibrated


def test_a_column_that_tells_the_label_is_warned_of_next_to_the_figures_and_in_the_list_of_runs(
    project: Project, commands: Commands
) -> None:
    leak = "column 'ended' is filled in 1,326 rows, all of them 'yes' (18.5 % of all rows are)"
    trained = Recipe(project, lambda _: None, leaks=(leak,)).run()
    shown = result_of(trained)
    assert list(shown)[:2] == ["AUC", "warning"]
    assert shown["warning"].startswith(f"{leak}: the figures are worth nothing unless")
    Recipe(project, lambda _: None).run()
    Recipe(project, lambda _: None, leaks=(leak,)).run()
    assert [one["leaks"] for one in describe_runs(project)] == [[leak], [], [leak]]
    said = CliRunner().invoke(app, ["quickstart", "status", str(project.folder)], env={"COLUMNS": "250"})
    assert said.output.count("0.7, a leak?") == 2
    assert said.output.count(leak) == 1
    assert f"runs 1, 3: warning: {leak}: " in said.output


def test_runs_have_tasks_that_can_be_told_apart(project: Project, commands: Commands) -> None:
    for run in ("1", "2"):
        Recipe(project, lambda _: None).run()
        assert f"--name {project.folder.name}, run {run} " in asked(commands, "adserver task create")


def test_a_model_that_cannot_be_calibrated_stays_as_it_is_and_the_reason_is_told(
    project: Project, commands: Commands
) -> None:
    why = "InvalidTask: the best scale of the logit is -1"
    commands.failing = {"adserver model calibrate": subprocess.CompletedProcess("", 1, "", why)}
    # What has just failed is not advised
    commands.advice = ["the mean prediction is 0.50 of the base rate: run `adserver model calibrate`, or"]
    told: list[str] = []
    trained = Recipe(project, told.append).run()
    assert (trained.calibration, trained.mean_over_rate) == (None, 0.5)
    [warned] = trained.warnings
    assert warned.startswith("the model cannot be calibrated, and its chances do not add up: adserver model")
    assert warned.endswith(why)
    assert [one for one in told if "calibrat" in one] == [f"warning: {warned}"]


@pytest.mark.parametrize("mean_over_rate", [0.95, None])
def test_a_model_whose_predictions_add_up_or_that_gives_no_chance_is_left_as_it_is(
    mean_over_rate: float | None, project: Project, commands: Commands
) -> None:
    commands.mean_over_rate = mean_over_rate
    assert Recipe(project, lambda _: None).run().calibration is None
    assert "adserver model calibrate" not in commands.ran


def test_runs_have_names_and_are_compared(project: Project, commands: Commands) -> None:
    Recipe(project, lambda _: None, options=RunOptions(name="wide", note="two layers")).run()
    commands.failing = {"adserver job watch": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(project, lambda _: None).run()
    first, second = describe_runs(project)
    assert (first["run"], first["state"], first["name"], first["auc"]) == ("1", "done", "wide", 0.7)
    assert first["note"] == "two layers"
    assert (second["run"], second["state"], second["auc"]) == ("2", "interrupted", None)
    shown = CliRunner().invoke(app, ["quickstart", "status", str(project.folder)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert [word in shown.output for word in ("helper-0", "stopped", "two layers", "interrupted")] == [
        True
    ] * 4


def test_the_weights_that_did_best_on_the_panel_are_the_models_and_the_last_ones_are_told(
    project: Project, commands: Commands
) -> None:
    commands.chosen = 90
    commands.tested = {"last.onnx": {"loss": 0.9, "auc": 0.6}, "untrained.onnx": {"loss": 0.7, "auc": 0.5}}
    told: list[str] = []
    trained = Recipe(project, told.append).run()
    assert (trained.rounds, trained.chosen_round) == (120, 90)
    assert (trained.auc, trained.last_auc, trained.last_loss) == (0.7, 0.6, 0.9)
    exported = [asked for asked in commands.asked if asked[:2] == ("model", "export")]
    assert ["--weights" in asked for asked in exported] == [True, False]
    # The last weights are calibrated as the model is, so that their losses compare.
    assert commands.calibrated == {"trained.onnx", "last.onnx"}
    assert any("the loss rose from 0.7000" in line for line in told)


@pytest.mark.parametrize(("after", "is_worse"), [(0.5, False), (0.605, False), (0.65, True)])
def test_a_plain_loss_that_calibration_mends_is_no_rise(
    after: float, *, is_worse: bool, project: Project, commands: Commands
) -> None:
    commands.tested = {
        "untrained.onnx": {"loss": 0.6, "calibrated_loss": 0.6, "auc": 0.5},
        "trained.onnx": {"loss": 0.9, "calibrated_loss": after, "auc": 0.7},
    }
    warnings = Recipe(project, lambda _: None).run().warnings
    assert any("the calibrated loss rose from 0.6000" in one for one in warnings) == is_worse
    assert not any("the loss rose" in one for one in warnings)
    # The rule chose the rate
    assert not any("rose" in one and "learning_rate" in one for one in warnings)


@pytest.mark.parametrize(
    ("chosen", "mean", "expected"),
    [
        (120, 0.2, "mean prediction was 0.20 of the base rate before calibration"),
        (120, 3.5, "mean prediction was 3.50"),
        (18, 0.5, "after round 18 of 120"),
        (19, 0.5, ""),
        (120, 0.5, ""),
    ],
)
def test_a_model_that_learned_little_is_warned_of(
    chosen: int, mean: float, expected: str, project: Project, commands: Commands
) -> None:
    commands.chosen, commands.mean_over_rate = chosen, mean
    found = [one for one in Recipe(project, lambda _: None).run().warnings if "learned little" in one]
    assert [expected in one for one in found] == ([True] if expected else [])


def test_runs_of_one_table_are_tested_on_the_same_rows(project: Project, commands: Commands) -> None:
    for _ in range(2):
        Recipe(project, lambda _: None).run()
    seeds = [asked[asked.index("--holdout-seed") + 1] for asked in commands.asked if "--holdout" in asked]
    assert len(seeds) == 2
    assert len(set(seeds)) == 1


def test_a_run_is_compared_with_plain_training_on_the_same_rows(project: Project, commands: Commands) -> None:
    trained = Recipe(project, lambda _: None, options=RunOptions(compare_plain=True)).run()
    folder = project.folder / "runs" / "1"
    assert trained.plain is not None
    assert trained.plain["auc"] > 0.95
    assert notes_of((folder / "plain.onnx").read_bytes())[LOSS_IS] == "binary_cross_entropy_with_logits"
    assert not (folder / "reported.npz").exists()
    (told,) = describe_runs(project)
    assert told["plain_auc"] == trained.plain["auc"]
    assert told["panel_alone_auc"] == trained.plain["panel_alone"]["auc"]


def test_a_run_is_compared_with_the_panel_alone_on_the_same_rows(
    project: Project, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = Recipe(project, lambda _: None, options=RunOptions(compare_plain=True)).run()
    assert trained.plain is not None
    alone = trained.plain["panel_alone"]
    low, high = alone["auc_interval"]
    assert 0.7 < low < alone["auc"] < high
    summary = json.loads((project.folder / "runs" / "1" / "summary.json").read_text())
    assert summary["plain"]["panel_alone"]["auc"] == alone["auc"]
    *_others, (name, area, _less) = comparison_of(trained, capsys)
    assert (name, area) == ("panel alone", f"{alone['auc']:.4g} (99 %: {low:.3f} to {high:.3f})")


@pytest.mark.parametrize("named", [None, 7])
@pytest.mark.parametrize("is_own", [False, True])
def test_rounds_of_ones_own_network_are_those_of_the_rule_unless_they_are_named(
    project: Project, commands: Commands, tmp_path: Path, *, is_own: bool, named: int | None
) -> None:
    if is_own:
        (tmp_path / "net.onnx").write_bytes(dense_network([30, 4, 1], "relu", seed=1, final="linear"))
        change(project.folder, 'onnx = ""', f'onnx = "{tmp_path / "net.onnx"}"')
    if named:
        change(project.folder, "# rounds = 120", f"rounds = {named}")
    commands.shown, told = {"rounds": 300}, list[str]()
    Recipe(Project.open(project.folder), told.append).run()
    [asked] = [words for words in commands.asked if words[:2] == ("job", "submit")]
    assert ("--rounds" in asked) == (not is_own or named is not None)
    rounds = f"{named or 120} rounds; "
    if is_own and named is None:
        rounds = "300 rounds by the rule for an untrained hidden layer; "
    assert any(line.startswith(f"training for {rounds}") for line in told)


@pytest.mark.parametrize("is_own", [False, True])
def test_the_private_model_is_compared_with_both_on_all_rows_of_the_panel(
    project: Project,
    commands: Commands,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    is_own: bool,
) -> None:
    """Computed again from the files: the panel is divided for the panel alone, and put together in order."""
    if is_own:
        (tmp_path / "net.onnx").write_bytes(dense_network([30, 4, 1], "relu", seed=1, final="linear"))
        change(project.folder, 'onnx = ""', f'onnx = "{tmp_path / "net.onnx"}"')
    told: list[str] = []
    options = RunOptions(compare_plain=True)
    trained = Recipe(Project.open(project.folder), told.append, options=options).run()
    folder = project.folder / "runs" / "1"
    panel = read_eval_set((folder / "panel.npz").read_bytes())
    private, plain = (
        predict((folder / name).read_bytes(), panel.features) for name in ("trained.onnx", "plain.onnx")
    )
    found = trained.plain or {}
    expected = compare_scores(private, plain, panel.labels)
    for name in ("metric", "difference", "low", "high", "examples"):
        assert found["private_minus_this"][name] == getattr(expected, name)
    assert found["private_minus_this"]["examples"] == len(panel)
    alone = found["panel_alone"]
    own = evaluate((folder / "trained.onnx").read_bytes(), panel.features, panel.labels, LOGITS).auc
    assert own is not None
    # The folds' scores lie at their own rows: otherwise their AUC would be another
    assert alone["private_minus_this"]["difference"] == pytest.approx(own - alone["auc"])
    # Random weights do worse than training
    assert alone["private_minus_this"]["high"] < 0
    assert found["verdict"].startswith("The private model ranks 0.")
    assert " worse than the panel alone, and 0." in found["verdict"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["plain"]["verdict"] == found["verdict"]
    assert summary["dataset_id"] == "d"
    # Once, and first: the result begins with it
    warning = f"{found['verdict']} Use more reports or a larger epsilon, or do without reports."
    assert not any(found["verdict"] in line for line in told)
    first, *_others = describe_result(trained, Path("play/runs/1"))
    assert first == f"verdict    {warning}"
    less = [
        "{difference:+.4f} ({low:+.4f} to {high:+.4f})".format(**one["private_minus_this"])
        for one in (found, alone)
    ]
    compared = comparison_of(trained, capsys)
    assert [name for name, *_ in compared] == ["private", "plain", "panel alone"]
    assert [row[-1] for row in compared[1:]] == less
    (run,) = describe_runs(project)
    assert run["private_minus_plain"] == summary["plain"]["private_minus_this"]
    assert run["private_minus_panel_alone"] == summary["plain"]["panel_alone"]["private_minus_this"]
    assert (run["dataset_id"], run["verdict"]) == ("d", found["verdict"])
    said = CliRunner().invoke(app, ["quickstart", "status", str(project.folder)], env={"COLUMNS": "250"})
    assert f"run 1: {found['verdict']}" in said.output


def test_a_panel_that_tells_nothing_leaves_the_figures_and_says_so(
    project: Project, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidTask("too few rows")

    monkeypatch.setattr("adserver.training.plain_comparison.compare_scores", refuse)
    told: list[str] = []
    trained = Recipe(project, told.append, options=RunOptions(compare_plain=True)).run()
    assert trained.plain is not None
    assert trained.plain["auc"] > 0.95
    assert (trained.plain["private_minus_this"], trained.plain["verdict"]) == (None, "")
    remark = r"the private model is not compared with plain training of .*: too few rows"
    assert any(re.fullmatch(remark, line) for line in told)


@pytest.mark.parametrize("is_own", [False, True])
def test_a_network_is_trained_on_the_panel_alone_unless_it_adds_up_columns_as_the_linear_model_does(
    project: Project, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_own: bool
) -> None:
    trained: list[bytes] = []

    def fit(network: bytes, *of: Any, **how: Any) -> PanelAlone:
        trained.append(network)
        return cross_fit_panel(network, *of, **how)

    monkeypatch.setattr("adserver.training.plain_comparison.cross_fit_panel", fit)
    if is_own:
        (tmp_path / "net.onnx").write_bytes(dense_network([30, 1], "relu", seed=1, final="linear"))
        change(project.folder, 'onnx = ""', f'onnx = "{tmp_path / "net.onnx"}"')
    found = Recipe(Project.open(project.folder), lambda _: None, options=RunOptions(compare_plain=True)).run()
    assert len(trained) == is_own
    assert found.plain is not None
    assert is_own or found.plain["panel_alone"]["kind"] == "linear"


@pytest.mark.parametrize(
    ("low", "high", "is_warned"), [(-0.02, 0.04, True), (-0.04, -0.01, True), (0.001, 0.04, False)]
)
def test_the_interval_and_not_the_two_figures_decides_whether_the_panel_alone_does_as_well(
    low: float, high: float, *, is_warned: bool, tmp_path: Path
) -> None:
    commands: Any = None  # it runs none
    finisher = ModelFinisher(
        commands=commands,
        folder=tmp_path,
        panel=tmp_path,
        loss=Loss.CROSS_ENTROPY,
        is_own_model=False,
        is_rate_named=False,
        tell=print,
    )
    compared = {"metric": "auc", "difference": (low + high) / 2, "low": low, "high": high}
    plain = {"verdict": "The verdict.", "panel_alone": {"auc": 0.7, "private_minus_this": compared}}
    warned = finisher.warn_of_panel(plain)
    assert [one.startswith("The verdict. Use more reports") for one in warned] == [True] * is_warned
    of_devices = replace(finisher, are_devices=True).warn_of_panel(plain)
    said = "The verdict. Use more people or a larger epsilon, or do without their devices."
    assert of_devices == (said,) * is_warned
    # Numbers are not compared, and devices have no panel of other people's rows
    undecided = {"auc": 0.9, "private_minus_this": None}
    for nothing in (None, {**plain, "panel_alone": None}, {**plain, "panel_alone": undecided}):
        assert finisher.warn_of_panel(nothing) == ()


def test_a_model_whose_weights_lie_beside_it_is_compared_too(
    project: Project, commands: Commands, tmp_path: Path
) -> None:
    proto = onnx.ModelProto.FromString(dense_network([30, 1], "relu", seed=1, final="linear"))
    onnx.save(proto, tmp_path / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    change(project.folder, 'onnx = ""', f'onnx = "{tmp_path / "net.onnx"}"')
    trained = Recipe(
        Project.open(project.folder), lambda _: None, options=RunOptions(compare_plain=True)
    ).run()
    assert trained.plain is not None
    assert trained.plain["auc"] > 0.95


@pytest.mark.parametrize("is_standardised", [True, False])
def test_an_untrained_model_of_ones_own_is_standardised_by_the_panel_and_the_run_says_so(
    project: Project, commands: Commands, tmp_path: Path, *, is_standardised: bool
) -> None:
    own = dense_network([30, 1], "relu", seed=1, final="linear")
    (tmp_path / "net.onnx").write_bytes(own)
    asked = f'onnx = "{tmp_path / "net.onnx"}"\nstandardise = {str(is_standardised).lower()}'
    change(project.folder, 'onnx = ""', asked)
    told: list[str] = []
    Recipe(Project.open(project.folder), told.append).run()
    submitted = next(words for words in commands.asked if words[:2] == ("job", "submit"))
    model = Path(submitted[submitted.index("--model") + 1]).read_bytes()
    assert (model != own) is is_standardised
    assert any("[model] standardise = false" in line for line in told) is is_standardised
    assert "--as-it-is" in submitted


@pytest.mark.parametrize(("activation", "is_general"), [(nn.ReLU(), False), (nn.GELU(), True)])
def test_a_run_says_why_helpers_do_not_compute_a_model_exactly(
    project: Project, commands: Commands, tmp_path: Path, activation: nn.Module, *, is_general: bool
) -> None:
    network = nn.Sequential(nn.Linear(30, 2), activation, nn.Linear(2, 1))
    (tmp_path / "net.onnx").write_bytes(export(network, 30, 2, dynamo=True))
    change(project.folder, 'onnx = ""', f'onnx = "{tmp_path / "net.onnx"}"')
    told: list[str] = []
    Recipe(Project.open(project.folder), told.append).run()
    said = "\n".join(told)
    assert ("general path" in said) is is_general
    assert ("helpers compute the model exactly" in said) is not is_general
    assert ("Gelu" in said) is is_general


def test_a_run_after_one_that_was_cut_off_while_reports_were_sent_keeps_what_was_asked_for(
    project: Project, commands: Commands
) -> None:
    commands.failing = {"browser-sim run": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(project, lambda _: None, options=RunOptions(name="wide", note="two layers")).run()
    commands.failing = {}
    trained = Recipe(project, lambda _: None).run()
    assert (trained.run, trained.name, trained.note) == ("2", "wide", "two layers")
    after = Recipe(project, lambda _: None).run()
    assert (after.run, after.name) == ("3", "")


@pytest.mark.parametrize("given", [RunOptions(), RunOptions(note="three layers")])
def test_a_run_that_is_gone_on_with_keeps_what_was_asked_for_unless_something_else_is(
    given: RunOptions, project: Project, commands: Commands
) -> None:
    asked = RunOptions(name="wide", note="two layers", compare_plain=True)
    commands.failing = {"adserver job submit": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(project, lambda _: None, options=asked).run()
    rows = project.folder / "runs" / "1" / "reported.npz"
    assert rows.exists()
    assert [describe_runs(project)[0][name] for name in ("name", "note")] == ["wide", "two layers"]
    commands.failing = {}
    trained = Recipe(project, lambda _: None, options=given).run()
    assert (trained.run, trained.name, trained.note) == ("1", "wide", given.note or "two layers")
    submitted = commands.asked[
        commands.ran.index("adserver job submit", commands.ran.index("adserver job submit") + 1)
    ]
    assert submitted[submitted.index("--name") + 1] == "wide"
    assert trained.plain is not None
    # In clear, and no longer needed
    assert not rows.exists()
    # A new run is asked for anew
    assert Recipe(project, lambda _: None).run().name == ""


def test_a_run_that_was_begun_without_its_rows_says_that_it_is_not_compared(
    project: Project, commands: Commands
) -> None:
    commands.failing = {"adserver job watch": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(project, lambda _: None).run()
    commands.failing = {}
    told: list[str] = []
    assert Recipe(project, told.append, options=RunOptions(compare_plain=True)).run().plain is None
    assert any("begun without --compare-plain" in one for one in told)


def test_an_interrupted_run_is_gone_on_with(project: Project, commands: Commands) -> None:
    commands.failing = {"adserver job watch": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(project, lambda _: None).run()
    commands.failing = {}
    commands.ran.clear()
    told: list[str] = []
    assert Recipe(project, told.append).run().run == "1"
    assert told[0] == "going on with run 1, which was interrupted"
    assert commands.ran[:2] == ["adserver job show", "adserver model create"]
    assert "adserver job submit" not in commands.ran
    assert Recipe(project, told.append).run().run == "2"


@pytest.mark.parametrize("state", ["running", "done"])
def test_a_run_that_is_left_for_changed_settings_is_named_and_its_job_is_stopped_if_it_runs(
    state: str, project: Project, commands: Commands
) -> None:
    commands.failing = {"adserver job watch": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(project, lambda _: None).run()
    others = {"job_id": "c" * 32, "task_id": "d" * 64, "state": "running"}
    commands.failing, commands.jobs = {}, [{"job_id": JOB, "task_id": TASK, "state": state}, others]
    change(project.folder, "# rounds = 120", "rounds = 61")
    told: list[str] = []
    assert Recipe(Project.open(project.folder), told.append).run().run == "2"
    assert told[0] == (
        "run 1 was not done and is not gone on with: lark.toml or the table has changed; run 2 begins"
    )
    cancelled = [one for one in commands.asked if one[:2] == ("job", "cancel")]
    assert cancelled == ([("job", "cancel", JOB)] if state == "running" else [])
    assert (told[1] == f"job {JOB[:12]} of run 1 is stopped") is (state == "running")


def test_the_job_of_a_run_that_is_left_is_stopped_by_the_next_run_if_one_was_cut_off_before(
    project: Project, commands: Commands
) -> None:
    commands.failing = {"adserver job watch": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(project, lambda _: None).run()
    change(project.folder, "# rounds = 120", "rounds = 61")
    changed = Project.open(project.folder)
    commands.failing = {"adserver job list": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(changed, lambda _: None).run()
    commands.failing, commands.jobs = {}, [{"job_id": JOB, "task_id": TASK, "state": "running"}]
    assert Recipe(changed, lambda _: None).run().run == "2"
    assert ("job", "cancel", JOB) in commands.asked
    why = describe_runs(changed)[0]["why"]
    assert "lark.toml or the table has changed, so a later run was begun: this one stays as it is" in why


def test_other_addresses_of_servers_leave_no_run(project: Project, commands: Commands) -> None:
    commands.failing = {"adserver job watch": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(project, lambda _: None).run()
    commands.failing = {}
    moved = replace(project.settings, servers=replace(project.settings.servers, dashboard="127.0.0.1:5"))
    assert Recipe(replace(project, settings=moved), lambda _: None).run().run == "1"


def test_a_job_that_ends_while_it_is_stopped_stops_no_run(project: Project, commands: Commands) -> None:
    commands.failing = {"adserver job watch": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(project, lambda _: None).run()
    too_late = subprocess.CompletedProcess("", 1, "", "a job in state done cannot be cancelled")
    commands.failing = {"adserver job cancel": too_late}
    commands.jobs = [{"job_id": JOB, "task_id": TASK, "state": "running"}]
    change(project.folder, "# rounds = 120", "rounds = 61")
    told: list[str] = []
    assert Recipe(Project.open(project.folder), told.append).run().run == "2"
    assert not any("is stopped" in one for one in told)


def test_a_step_that_was_done_but_not_noted_is_not_done_twice(project: Project, commands: Commands) -> None:
    commands.failing = {"adserver job submit": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(project, lambda _: None).run()
    commands.failing, commands.jobs = {}, [{"job_id": JOB, "task_id": TASK}]
    commands.ran.clear()
    Recipe(project, lambda _: None).run()
    assert not {"adserver job submit", "adserver dataset seal", "browser-sim run"} & set(commands.ran)


@pytest.mark.parametrize("why", ["reports were being sent", "the settings changed"])
def test_a_run_that_cannot_be_gone_on_with_is_begun_anew(
    why: str, project: Project, commands: Commands
) -> None:
    sending = why == "reports were being sent"
    commands.failing = {"browser-sim run" if sending else "adserver job watch": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(project, lambda _: None).run()
    commands.failing = {}
    if not sending:
        change(project.folder, "# rounds = 120", "rounds = 61")
    assert Recipe(Project.open(project.folder), lambda _: None).run().run == "2"


@pytest.mark.parametrize(
    ("name", "ended", "why"),
    [
        (
            "adserver task create",
            (1, "", ""),
            "adserver task create: it ended with status 1 and said nothing",
        ),
        ("browser-sim run", (2, "", "╭─ Error ─╮\n│ wrong │\n╰────╯\n"), "browser-sim run .*: Error wrong"),
        ("adserver job watch", (1, "", "InvalidTask: gone"), "adserver job watch: InvalidTask: gone"),
    ],
)
def test_a_refusal_has_a_text(
    name: str, ended: tuple[int, str, str], why: str, project: Project, commands: Commands
) -> None:
    status, out, err = ended
    commands.failing = {name: subprocess.CompletedProcess(name, status, out, err)}
    with pytest.raises(InvalidTask, match=why):
        Recipe(project, lambda _: None).run()


def test_an_error_that_cannot_be_noted_on_a_full_disk_is_said(
    project: Project, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Steps, "stop", fail)
    commands.failing = {
        "adserver task create": subprocess.CompletedProcess("", 1, "", "InvalidTask: no room")
    }
    with pytest.raises(InvalidTask, match="InvalidTask: no room"):
        Recipe(project, lambda _: None).run()


def test_a_job_that_stopped_says_why(project: Project, commands: Commands) -> None:
    commands.job |= {"state": "refused", "rounds_done": 3, "cause": "the budget is spent"}
    with pytest.raises(InvalidTask, match="is refused after 3 rounds: the budget is spent"):
        Recipe(project, lambda _: None).run()


@pytest.mark.parametrize(
    "shown", [{"state": "cancelled", "reason": None}, {"state": "refused", "reason": "budget_exhausted"}]
)
def test_a_run_whose_job_can_never_be_done_is_not_gone_on_with(
    shown: dict[str, Any], project: Project, commands: Commands
) -> None:
    commands.job |= {"state": shown["state"], "rounds_done": 3, "cause": ""}
    with pytest.raises(InvalidTask, match=shown["state"]):
        Recipe(project, lambda _: None).run()
    commands.job |= {"state": "done", "rounds_done": 120}
    commands.shown = shown
    assert Recipe(project, lambda _: None).run().run == "2"


def test_waiting_ends_when_a_server_ends(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.parties.mkdir()
    (project.parties / "helper-0.log").write_text("no room on the disk\n")
    monkeypatch.setattr(module, "command", lambda _: "/bin/sleep")
    monkeypatch.setattr(module, "_WATCHED_EVERY_S", 0.01)
    waiting = ProjectCommands(project, RunningFleet(project, lambda _: None).require)
    with pytest.raises(HelperUnavailable, match="helper-0 has ended: no room on the disk"):
        waiting.end("sleep", "600")
    # A command that failed meanwhile did so for want of it
    monkeypatch.setattr(module, "command", lambda _: "/bin/false")
    with pytest.raises(HelperUnavailable, match="helper-0 has ended: no room on the disk"):
        waiting.run("false")


def test_the_end_of_a_log_is_told_line_by_line_before_the_error(project: Project) -> None:
    project.parties.mkdir()
    (project.parties / "helper-0.log").write_text("starting\n\x1b[31mopened the ledger\nno room\n")
    told: list[str] = []
    with pytest.raises(HelperUnavailable) as ended:
        RunningFleet(project, told.append).require()
    assert str(ended.value) == "helper-0 has ended: no room"
    assert told == ["helper-0: starting", "helper-0: \\x1b[31mopened the ledger"]


def test_servers_that_down_has_stopped_have_not_ended_by_themselves(project: Project) -> None:
    project.parties.mkdir()
    (project.parties / "helper-0.log").write_text("no room on the disk\n")
    fleet = RunningFleet(project, lambda _: None)
    assert fleet.down() == []
    why = f"its servers were stopped by `adserver quickstart down {project.folder}`"
    with pytest.raises(HelperUnavailable, match=re.escape(why)):
        fleet.require()


def test_while_a_command_runs_its_caller_may_look_now_and_then(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "command", lambda _: "/bin/sleep")
    monkeypatch.setattr(module, "_WATCHED_EVERY_S", 0.01)
    looks: list[str] = []
    watched = ProjectCommands(project, lambda: looks.append("watched"))
    watched.during(lambda: looks.append("looked"), every_s=0.0).run("sleep", "0.5")
    assert looks[:2] == ["watched", "looked"]


SPENT = {"ad_server": 0.5, "colluding": 0.7}
PAID = {"value": 1.5, "standard_error": 0.02, "low": 1.4, "high": 1.6}
COUNTED = {"value": 150, "standard_error": 2, "low": 140, "high": 160}
ANSWER = {
    "query_id": "q", "task_id": TASK, "dataset_id": "d", "records": 378, "delta": 1e-5,
    "mechanism": "gaussian", "unit": "report", "reports_per_user": 1, "epsilon": SPENT,
    "dataset_epsilon_spent": SPENT,
    "min_cell_count": 20, "threshold_noise": 3.0, "threshold_margin": 0.0, "discovery_margin": 0.0,
    "where": {}, "statistics": {},
    "columns": [
        {"name": name, "value": name, "bucket": None, "noise_scale": 2.0} for name in ("paid", "count")
    ],
    "rows": [{"group": {"device": "phone"}, "paid": PAID, "count": COUNTED}],
}  # fmt: skip


def test_what_is_measured_is_declared_reported_asked_for_once_and_in_the_summary(
    project: Project, commands: Commands
) -> None:
    lines = "".join(f"{('phone', 'desktop')[row % 2]},{row % 7}.25,{row % 2}\n" for row in range(200))
    (project.folder / "shop.csv").write_text("device,paid,bought\n" + lines)
    change(project.folder, 'csv = ""', 'csv = "shop.csv"')
    change(project.folder, 'label = ""', 'label = "bought"')
    change(
        project.folder, "values = []\nkeys = []", 'values = [{column = "paid", most = 5}]\nkeys = ["device"]'
    )
    commands.measured = ANSWER
    commands.failing = {"adserver job submit": KeyboardInterrupt()}
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        Recipe(Project.open(project.folder), told.append).run()
    commands.failing = {}
    trained = Recipe(Project.open(project.folder), told.append, warnings=("column 'x' leaks",)).run()
    assert trained.warnings[0] == "column 'x' leaks"
    # As of the table, `run_project` has told how many there are
    assert "warning: column 'x' leaks" not in told
    folder = project.folder / "runs" / "1"
    assert commands.ran.count("adserver aggregate --dataset") == 1
    measured = "--value paid=paid*100"
    options = [measured, f"--measurement {folder / 'measurement.json'}", f"{measured} --key device=device"]
    assert all(wanted in " ".join(asked) for wanted, asked in zip(options, commands.asked[:3], strict=True))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["measured"] == {
        **{kind: str(folder / f"measured.{kind}") for kind in ("csv", "json", "png")},
        "own_table": str(folder / "own-table-not-private.json"),
        "quantiles": [],
        "epsilon": 0.5,
        "collusion_epsilon": 0.7,
    }
    spent = [summary[f"{name}_with_measurement"] for name in ("epsilon", "collusion_epsilon")]
    assert (summary["epsilon"], *spent) == (2.5, 2.6, 4.3)
    shown = result_of(trained)
    assert shown["epsilon"] == "2.5 of training against the ad server, 4 with one helper"
    assert shown["with sums"] == "2.6 against the ad server, 4.3 with one helper"
    header, cells, *_ = (folder / "measured.csv").read_text().splitlines()
    assert header.endswith(
        ",mean of paid value,mean of paid standard_error,mean of paid low,mean of paid high,may_be_hidden"
        ",reports,confidence,epsilon,collusion_epsilon,delta,unit,reports_per_user"
    )
    assert cells.endswith(",False,378,0.99,0.5,0.7,1e-05,report,1")
    # What is shared for an epsilon has nothing of the table's own rows
    written = json.loads((folder / "measured.json").read_text())
    assert written.keys() == ANSWER.keys() | {"caption", "confidence"}
    assert "; over the 378 reports of the dataset only" in written["caption"]
    own_table = json.loads((folder / "own-table-not-private.json").read_text())
    assert next(iter(own_table.items())) == ("is_private", False)
    # The panel's rows are not in the results, and not in what is said of them
    lost = sum(max(0, row % 7 + 0.25 - 5) for row in range(100, 200, 2))
    assert {"group": {"device": "phone"}, "paid": lost} in own_table["cut_off"]
    clipped = own_table["clipped"]["paid"]
    assert (clipped["rows"], clipped["worst_group"]) == (28, ["phone"])
    assert clipped["worst_lost"] == pytest.approx(lost)
    assert any("from your own table" in note for note in own_table["notes"])
    assert cells.split(",")[9] == "0.01"  # 1.50 over 150 rows
    assert "mean of paid" in json.loads((folder / "measured.json").read_text())["statistics"]
    assert (folder / "measured.csv").read_text().splitlines()[1].startswith("phone,1.5,0.02,1.4,1.6,150.0")
    assert any(f"see {folder / 'measured.csv'}" in one for one in told)


@pytest.fixture
def at_home(project: Project) -> Project:
    """A project of 100 people with two rows each, and three rows of nobody."""
    lines = "".join(f"p{row % 100},{row % 7},{row % 2}\n" for row in range(200)) + ",1,1\n" * 3
    (project.folder / "home.csv").write_text("who,pages,bought\n" + lines)
    change(project.folder, 'csv = ""', 'csv = "home.csv"')
    change(project.folder, 'label = ""', 'label = "bought"')
    change(project.folder, 'person = ""            # the', 'person = "who" # the')
    return Project.open(project.folder)


def asked(commands: Commands, name: str) -> str:
    """The last arguments of a command."""
    [*_, last] = [words for ran, words in zip(commands.ran, commands.asked, strict=True) if ran == name]
    return " ".join(last)


def test_numbers_that_name_rows_stay_features_where_settings_keep_them(
    at_home: Project, commands: Commands
) -> None:
    table = at_home.folder / "home.csv"
    head, *rows = table.read_text().splitlines()
    numbered = [f"{head},visit", *(f"{row},{place}" for place, row in enumerate(rows))]
    table.write_text("\n".join(numbered) + "\n")
    DeviceRecipe(at_home, lambda _: None).run()
    assert "--type visit=number" in " ".join(commands.asked[0])
    assert "pages=number" not in " ".join(commands.asked[0])


def test_devices_train_on_their_rows_and_every_row_is_counted(at_home: Project, commands: Commands) -> None:
    told: list[str] = []
    trained = DeviceRecipe(at_home, told.append).run()
    folder = at_home.folder / "runs" / "1"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rows"] == {
        "read": 203, "reported": 160, "panel": 40, "left_out": {"column 'who': no person": 3},
    }  # fmt: skip
    assert (summary["devices"], summary["reports"], summary["dataset_size"]) == (80, 0, 0)
    shown = result_of(trained)
    left_out = "3 left out (column 'who': no person: 3)"
    assert shown["rows"] == f"203 read, 160 on 80 devices, 40 in the panel, {left_out}"
    assert shown["epsilon"] == "2.5 of a person against the ad server, 4 with one helper"
    assert (summary["epsilon"], summary["collusion_epsilon"]) == (2.5, 4.0)
    assert summary["model_of_columns"].endswith("trained-of-columns.onnx")
    assert summary["encoder"].endswith("encoder.json")
    assert "--ignore who" in " ".join(commands.asked[0])
    assert "--updates 31 --frac-bits 24 --max-dataset-size 80" in asked(commands, "adserver task create")
    assert any("panel.csv" in " ".join(words) and "--user who" in " ".join(words) for words in commands.asked)
    assert "--outputs 2 --word-tables-only" in asked(commands, "adserver model create")
    assert "--trainer torch" in asked(commands, "browser-sim devices")
    assert asked(commands, "adserver model evaluate").endswith("--loss cross_entropy --json")
    assert json.loads((folder / "strategy.json").read_text())["devices"] == 80
    assert not {"browser-sim run", "adserver dataset seal"} & set(commands.ran)
    assert not {"devices.csv", "panel.csv"} & {path.name for path in folder.iterdir()}
    assert "1 answer was not taken: round_over" in told


def test_the_time_that_rounds_take_is_told_once_one_has_ended() -> None:
    pace = _Pace(rounds=20, done=2, now_s=1000.0)
    assert pace.describe(2, 1010.0) == "2 of 20 rounds done, 10 s so far"
    assert pace.describe(3, 1040.0) == "3 of 20 rounds done, about 40 s each: 11 min left"
    assert pace.describe(3, 1070.0) == "3 of 20 rounds done, about 40 s each: 11 min left"
    assert pace.describe(18, 1640.0) == "18 of 20 rounds done, about 40 s each: 80 s left"
    assert pace.describe(20, 1720.0) == "20 of 20 rounds done, about 40 s each: 0 s left"


@pytest.mark.parametrize(("done", "rounds", "idle"), [(3, "2", "120"), (5, "1", "0.1")])
def test_devices_go_on_with_the_rounds_that_are_left(
    done: int, rounds: str, idle: str, at_home: Project, commands: Commands
) -> None:
    commands.failing = {"browser-sim devices": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        DeviceRecipe(at_home, lambda _: None).run()
    assert (at_home.folder / "runs" / "1" / "devices.csv").exists()
    commands.failing, commands.rounds_done = {}, done
    commands.ran.clear()
    commands.asked.clear()
    DeviceRecipe(at_home, lambda _: None).run()
    assert not {"adserver task create", "adserver job submit", "browser-sim encode"} & set(commands.ran)
    assert f"--rounds {rounds} --idle {idle}" in asked(commands, "browser-sim devices")


def test_rows_that_a_device_did_not_take_are_counted(at_home: Project, commands: Commands) -> None:
    commands.devices["examples"] = 155
    rows = DeviceRecipe(at_home, lambda _: None).run().rows
    assert rows.left_out["devices and panel did not take the row"] == 5
    assert rows.reported + rows.panel + sum(rows.left_out.values()) == rows.read


@pytest.fixture
def of_people(project: Project, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of 100 people with three rows each, and of a hundred rows of nobody."""
    lines = "".join(
        f"{'' if row >= 300 else f'p{row % 100}'},{row % 7}.25 €,{row % 5},{row % 2}\n" for row in range(400)
    )
    (project.folder / "shop.csv").write_text("who,paid,pages,bought\n" + lines, encoding="utf-8")
    change(project.folder, 'csv = ""', 'csv = "shop.csv"')
    change(project.folder, 'label = ""', 'label = "bought"')
    change(project.folder, 'person = ""            # a', 'person = "who" # a')
    change(project.folder, "# rows_per_person = 4", "rows_per_person = 2")
    change(project.folder, "values = []", 'values = [{column = "paid", most = 5}]')
    commands.measured = {**ANSWER, "rows": [{"group": {}, "paid": PAID, "count": COUNTED}]}
    sent = {"read": 160, "accepted": 160, "panel": 0, "left_out": {}, "rejected": {}}
    for name, value in (sent | {"no_consent": 0, "over_cap": 0, "too_late": 0}).items():
        monkeypatch.setitem(SENT, name, value)
    commands.admitted = 160
    return Project.open(project.folder)


def test_a_task_of_a_person_has_its_rows_up_to_the_most_and_each_epsilon_is_of_a_person(
    of_people: Project, commands: Commands
) -> None:
    told: list[str] = []
    trained = Recipe(of_people, told.append).run()
    folder = of_people.folder / "runs" / "1"
    task, sent = (asked(commands, name) for name in ("adserver task create", "browser-sim run"))
    assert "--unit user --reports-per-user 2" in task
    assert f"--csv {folder / 'reported.csv'} --value paid=paid*100 --user who" in sent
    assert "--holdout" not in sent
    assert "--ignore who" in " ".join(commands.asked[0])
    # 80 of the 100 people, with two of their three rows each; the panel has all rows of the others
    rows = Counter(line.split(",")[0] for line in commands.sent_table.splitlines()[2:])
    assert (len(rows), {*rows.values()}) == (80, {2})
    # As browsers read it: amounts are as in the whole table
    (folder / "again.csv").write_text(commands.sent_table)
    source = load_table(
        TableSettings(path=folder / "again.csv", label="bought", values={"paid": "paid*100"}, person="who")
    )
    assert source.rows == RowCounts(read=160)
    assert {*source.cells["paid"].cells} == {f"{whole}25.00" for whole in (*range(1, 7), "")}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rows"] == {
        "read": 400, "reported": 160, "panel": 40,
        "left_out": {
            "column 'who': no person": 100,
            "column 'who': beyond 2 rows of a person": 80,
            "the panel did not take the row": 20,
        },
    }  # fmt: skip
    assert summary["rows_per_person"] == trained.rows_per_person == 2
    shown = result_of(trained)
    whose = "of a person with up to 2 rows against the ad server"
    assert shown["epsilon"] == f"2.5 of training {whose}, 4 with one helper"
    assert shown["with sums"] == f"2.6 {whose}, 4.3 with one helper"
    assert any("for epsilon 0.5 of a person" in line for line in told)
    assert "80 rows are left out: column 'who': beyond 2 rows of a person" in told
    assert not {"reported.csv", "panel.csv"} & {path.name for path in folder.iterdir()}
    [run] = describe_runs(of_people)
    assert run["rows_per_person"] == 2
    listed = CliRunner().invoke(app, ["quickstart", "status", str(of_people.folder)], env={"COLUMNS": "250"})
    assert "2.5, with measurement 2.6 of a person" in listed.output


def test_rows_of_people_in_clear_are_deleted_and_sent_once_where_a_run_is_cut_off(
    of_people: Project, commands: Commands
) -> None:
    commands.failing = {"browser-sim run": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        Recipe(of_people, lambda _: None).run()
    assert not (of_people.folder / "runs" / "1" / "reported.csv").exists()
    commands.failing = {}
    assert Recipe(of_people, lambda _: None).run().run == "2"


def test_amounts_that_group_are_words_next_to_the_numbers_that_a_model_learns_from(
    of_people: Project, commands: Commands
) -> None:
    lines = "".join(f"p{row % 100},{row % 5}.50 €,{row % 2}\n" for row in range(400))
    (of_people.folder / "shop.csv").write_text("who,pages,bought\n" + lines, encoding="utf-8")
    change(of_people.folder, 'values = [{column = "paid", most = 5}]', "values = []")
    change(of_people.folder, "keys = []", 'keys = ["pages"]')
    Recipe(Project.open(of_people.folder), lambda _: None).run()
    folder = of_people.folder / "runs" / "1"
    assert "--key pages=pages as a key" in asked(commands, "browser-sim run")
    (folder / "again.csv").write_text(commands.sent_table)
    source = load_table(
        TableSettings(
            path=folder / "again.csv", label="bought", keys={"pages": "pages as a key"}, person="who"
        )
    )
    [key] = json.loads((folder / "measurement.json").read_text())["keys"]
    assert {*source.cells["pages"].cells} == {*key["categories"]} == {f"{one}.50 €" for one in range(5)}
    assert {*parse_table(commands.sent_table.encode(), "again.csv").columns["pages"]} == {
        f"{one}.50" for one in range(5)
    }
