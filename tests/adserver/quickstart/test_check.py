"""Every wrong setting is found, by its name, before anything is started."""

import csv
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from adserver.cli.main import app
from adserver.cli.quickstart_output import describe_features
from adserver.quickstart.check import Checked, check
from adserver.quickstart.commands import ProjectCommands
from adserver.quickstart.measurement import MeasurementPlan, plan_measurement
from adserver.quickstart.project import CONFIG, Project
from adserver.quickstart.recipe import Recipe
from adserver.quickstart.settings import DataSettings, MeasureSettings
from adserver.training.as_onnx import as_onnx
from browser_sim.cli import app as browser_sim
from browser_sim.sources.table import TableSettings, fit_counting
from maskedlark.canonical import encode
from maskedlark.encoding.dates import DateOrder
from maskedlark.encoding.encoder import CategoryColumn, Encoder, NumberColumn, read_encoder
from maskedlark.encoding.fit import PlannedTraining
from maskedlark.encoding.table import Table
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from tests.adserver.quickstart.tables import CASES, HEADER, ROWS, Case, text, visits, with_gaps
from tests.adserver.quickstart.test_project import change


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["quickstart", *map(str, arguments)])


def new(folder: Path, case: Case, name: str = "visits.csv") -> Result:
    (folder / name).write_bytes(case.content)
    return invoke("new", folder / "play", "--csv", folder / name, "--label", "bought")


@pytest.mark.parametrize("name", CASES)
def test_tables_that_nobody_prepared_lead_to_a_project_or_to_one_line(name: str, tmp_path: Path) -> None:
    case, play = CASES[name], tmp_path / "play"
    made = new(tmp_path, case)
    checked = invoke("check", play) if made.exit_code == 0 else made
    said = f"{checked.output} {checked.exception}"
    if case.features is None:
        assert checked.exit_code != 0
        assert case.refused in said
        assert not (play / "parties").exists()
        return
    assert checked.exit_code == 0, said
    found = check(Project.open(play))
    assert found.num_features == case.features
    assert found.rows + case.unlabelled == ROWS
    config = (play / CONFIG).read_text(encoding="utf-8")
    assert all(f'"{column}",  # ' in config for column in case.left_out)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('label = "bought"', 'label = "sold"', "no column 'sold'"),
        (
            'label = "bought"',
            'label = "Bought"',
            "no column 'Bought' .*did you mean 'bought'[?]",
        ),
        ('label = "bought"', 'label = ""', r"\[data\] label is empty"),
        (
            '"yes",  # ',
            '"maybe",  # ',
            r"\[data\] classes names 'maybe', but column 'bought' has no such label",
        ),
        ("words = []", 'words = ["cod=planned"]', r"\[data\] words names 'cod', but visits.csv has no such"),
        (
            "words = []",
            'words = ["device"]',
            r'\[data\] words, entry 1 is "device", but must be "COLUMN=planned"',
        ),
        ("words = []", 'words = ["device=2000000"]', r"words has 2000000 for 'device': .* 1048574 words"),
        ("words = []", 'words = ["device=9", "device=planned"]', r"\[data\] words names a column twice"),
        ("dates = []", 'dates = ["Minútes"]', "no such column; did you mean 'minutes'[?] It has visit, "),
        ("codes = []", 'codes = ["cod"]', r"\[data\] codes names 'cod', but visits.csv has no such column"),
        ("dates = []", 'dates = ["device"]', r"\[data\] dates names 'device': .* no date"),
        ("publish = []", 'publish = ["bought"]', r"\[data\] publish names 'bought', which is the label"),
        ("panel = 0.2", "panel = 1.2", r"\[data\] panel is 1.2, but must be between 0 and 1"),
        (
            "min_batch_size = 100",
            "min_batch_size = 1000",
            r"\[task\] min_batch_size is 1000, but browsers report 320",
        ),
        ("clip_norm = 10", "clip_norm = 0", r"\[task\] clip_norm is 0, but must be above 0"),
        (
            "clip_norm = 10",
            'clip_norm = "10"',
            r'\[task\] clip_norm is "10", but must be a number, above 0: write 10 without quotes',
        ),
        ("# rounds = 120", 'rounds = "all"', r'rounds is "all", but must be a whole number, at least 1(?!:)'),
        ("clip_norm = 10", "clip_norm = inf", r"\[task\] clip_norm is Infinity, but must be a finite number"),
        ('label = "bought"', "label = 2026-11-29", r"\[data\] label is .*, but must be a text in quotes"),
        ("epsilon = 3            # what", "epsilon = 5 # what", r"\[training\] epsilon is 5, but the budget"),
        ("collusion_epsilon = 8", "collusion_epsilon = 2", r"\[task\] collusion_epsilon is 2, below epsilon"),
        (
            "# batch_size = 256",
            "batch_size = 4000",
            r"\[training\] batch_size is 4000, but browsers report 320",
        ),
        (
            'optimizer = "momentum"',
            'optimizer = "adamm"',
            r'\[training\] optimizer is .*must be one of "sgd", ',
        ),
        (
            "# learning_rate = 1 ",
            "learning_rate = -1 ",
            r"\[training\] learning_rate is -1, but must be above 0",
        ),
        (
            '# loss = "cross_entropy"',
            'loss = "cross_entropy"',
            r"\[training\] loss: .*needs an output for each class",
        ),
        (
            '# loss = "cross_entropy"',
            'loss = "entropy"',
            r'\[training\] loss is "entropy", but must be one of',
        ),
        (
            "\nepsilon = 4",
            "\nepsilon = 30",
            r"\[task\] epsilon is 30, but this project's helpers allow at most 8",
        ),
        (
            "collusion_epsilon = 8",
            "collusion_epsilon = 60",
            r"\[task\] collusion_epsilon is 60, .* at most 16",
        ),
        ("min_batch_size = 100", "min_batch_size = 5", r"\[task\] min_batch_size is 5, .* at least 20"),
        ('onnx = ""', 'onnx = "no.onnx"', r"\[model\] onnx: cannot read .*no.onnx"),
        ('onnx = ""', 'onnx = "narrow.onnx"', r"\[model\] onnx: .*\(reports have 3 features\)"),
        ("# hidden = [32]", "hidden = 32", r"\[model\] hidden is 32, but must be a list, such as \[32\]"),
        ("words = []", "words = 3", r'words is 3, but must be a list of "COLUMN=planned" or "COLUMN=N"'),
        ("values = []", "values = 3", r"values is 3, but must be a list, such as \[{column = "),
        ("# hidden = [32]", "hidden = [0]", r"\[model\] hidden, entry 1 is 0, but must be from 1 to 65536"),
        (
            "values = []",
            'values = [{column = "no", most = 3}]',
            r"\[measure\] values names 'no', but visits.csv",
        ),
        (
            "values = []",
            'values = [{column = "pages"}]',
            r"\[measure\] values: 'pages' has no most, the most that a row counts: write most = [0-9.]+",
        ),
        (
            "values = []",
            'values = [{column = "device"}]',
            r"\[measure\] values: column 'device' holds words",
        ),
        (
            'helper_0 = "127.0.0.1',
            'helper_0 = "ads.example',
            r'\[servers\] helper_0 is "ads.example.*, but must be an address of this machine',
        ),
        ('.csv"', '.tsv"', "cannot read .*visits.tsv"),
    ],
)
def test_a_wrong_setting_is_found_by_name(before: str, after: str, why: str, tmp_path: Path) -> None:
    play = tmp_path / "play"
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    (play / "narrow.onnx").write_bytes(dense_network([2, 1], "relu", seed=1, final="linear"))
    config = (play / CONFIG).read_text()
    assert before in config
    (play / CONFIG).write_text(config.replace(before, after))
    for command in ("check", "run"):
        refused = invoke(command, play)
        assert refused.exit_code != 0
        assert re.search(why, f"{refused.output} {refused.exception}"), (
            f"{refused.output} {refused.exception}"
        )
    assert not (play / "parties").exists()


@pytest.mark.parametrize("why_no_feature", ["ignored", "measured"])
@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("dates", '["device"]'),
        ("codes", '["device"]'),
        ("words", '["device=planned"]'),
        ("words", '["device=5"]'),
        ("publish", '["device"]'),
    ],
)
def test_a_column_that_is_no_feature_may_stand_in_any_list_and_the_run_fits_what_check_does(
    setting: str, named: str, why_no_feature: str, tmp_path: Path
) -> None:
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    play = tmp_path / "play"
    change(play, f"{setting} = []", f"{setting} = {named}")
    if why_no_feature == "ignored":
        change(play, "ignore = [", 'ignore = [\n  "device",')
    else:
        change(play, "values = []", 'values = [{column = "device", word = "phone"}]')
    project = Project.open(play)
    found = check(project)
    assert found.problems == ()
    assert found.encoder is not None
    assert "device" not in [column.name for column in found.encoder.columns]
    assert fit_as_run(project, tmp_path / "encoder.json").columns == found.encoder.columns


def fit_as_run(project: Project, out: Path) -> Encoder:
    """Fit the encoder by the command that a run gives."""

    def call(_commands: ProjectCommands, program: str, *words: str) -> dict[str, Any]:
        assert program == "browser-sim"
        fitted = CliRunner().invoke(browser_sim, [*words, "--json"], catch_exceptions=False)
        assert fitted.exit_code == 0, fitted.output
        told: dict[str, Any] = json.loads(fitted.stdout)
        return told

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ProjectCommands, "read", call)
        Recipe(project, lambda _: None)._fit(project.settings.data, out)
    return read_encoder(out.read_bytes())


@pytest.mark.parametrize(("setting", "named"), [("codes", '["pages"]'), ("words", '["pages=planned"]')])
def test_a_column_is_not_both_of_dates_and_of_words(setting: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_text(
        text([(a, b, c, f"2026-01-{1 + row % 28:02}", e) for row, (a, b, c, _, e) in enumerate(visits())])
    )
    made = invoke("new", tmp_path / "play", "--csv", tmp_path / "visits.csv", "--label", "bought")
    assert made.exit_code == 0, made.output
    change(tmp_path / "play", f"{setting} = []", f"{setting} = {named}")
    [problem] = check(Project.open(tmp_path / "play")).problems
    assert problem == f"[data] {setting} names 'pages', which dates names too: remove it in one of them"


def slashed(first: int, second: int) -> str:
    """The visits with dates whose first and second numbers go up to these."""
    rows = enumerate(visits())
    return text(
        [(a, b, c, f"{1 + row % first:02}/{1 + row % second:02}/2026", e) for row, (a, b, c, _, e) in rows],
        header=("visit", "device", "minutes", "seen", "bought"),
    )


@pytest.mark.parametrize(("first", "second", "order"), [(28, 12, "dmy"), (12, 28, "mdy")])
def test_the_order_of_a_tables_dates_is_a_setting_and_in_the_encoder(
    first: int, second: int, order: str, tmp_path: Path
) -> None:
    made = new(tmp_path, Case(slashed(first, second).encode()))
    assert made.exit_code == 0, made.output
    assert f"with slashes, the {'day' if order == 'dmy' else 'month'} first" in made.output
    play = tmp_path / "play"
    assert f'dates = ["seen={order}"] ' in (play / CONFIG).read_text(encoding="utf-8")
    found = check(Project.open(play))
    assert found.problems == ()
    assert found.encoder is not None
    assert found.encoder.date_orders == {"seen": DateOrder(order)}
    fitted = fit_as_run(Project.open(play), tmp_path / "encoder.json")
    assert fitted.columns == found.encoder.columns
    assert fitted.date_orders == found.encoder.date_orders
    other = {"dmy": "mdy", "mdy": "dmy"}[order]
    change(play, f"seen={order}", f"seen={other}")
    [problem] = check(Project.open(play)).problems
    assert re.match(
        r"\[data\] dates names 'seen': visits.csv, line [0-9]+: its dates .*[0-9]+ more cells", problem
    )


def test_an_order_that_no_date_shows_is_asked_for_by_the_line_to_write(tmp_path: Path) -> None:
    made = new(tmp_path, Case(slashed(12, 11).encode()))
    assert made.exit_code == 0, made.output
    play = tmp_path / "play"
    line = 'dates = ["seen=dmy"]'
    assert f'move it to {line} if the day does, or to dates = ["seen=mdy"]' in " ".join(made.output.split())
    change(play, "dates = []", 'dates = ["seen"]')
    config = (play / CONFIG).read_text(encoding="utf-8")
    assert f"whether the day or the month stands first: move it to {line}" in config
    (play / CONFIG).write_text(re.sub('  "seen",  # its dates.*\n', "", config), encoding="utf-8")
    [problem] = check(Project.open(play)).problems
    assert problem.startswith("[data] dates names 'seen': ")
    assert problem.endswith(f'write {line} if the day does, or dates = ["seen=mdy"] if the month does')
    change(play, 'dates = ["seen"]', line)
    found = check(Project.open(play))
    assert found.problems == ()
    assert found.encoder is not None
    assert found.encoder.date_orders == {"seen": DateOrder.DAY_FIRST}
    change(play, line, 'dates = ["seen=dmy", "seen=mdy"]')
    [problem] = check(Project.open(play)).problems
    assert problem == "[data] dates names a column twice: keep one of them"


def test_a_model_of_another_width_is_named_at_once_and_may_be_given_its_columns_later(tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_bytes(CASES["semicolons"].content)
    (tmp_path / "net.onnx").write_bytes(dense_network([2, 1], "relu", seed=1, final="linear"))
    made = invoke(
        *("new", tmp_path / "play", "--csv", tmp_path / "visits.csv", "--label", "bought"),
        *("--model", tmp_path / "net.onnx"),
    )
    assert made.exit_code == 0, made.output
    assert "to correct before it runs: [model] onnx" in made.output
    assert "3 features wanted, 2 given" in made.output


def test_the_rows_of_a_networks_tables_are_told_and_a_table_with_fewer_is_found(tmp_path: Path) -> None:
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    play = tmp_path / "play"
    encoder = check(Project.open(play)).encoder
    assert encoder is not None
    [place] = [place for place, one in enumerate(encoder.columns) if one.name == "device"]
    device = encoder.columns[place]
    assert isinstance(device, CategoryColumn)
    assert f"{place} device ({device.rows} rows)" in invoke("check", play).output
    few = device.rows - 1
    for given, problems in ((few, [f"has {few} rows, but column 'device' names"]), (device.rows, [])):
        write_lookup(play / "net.onnx", place, given)
        config = (play / CONFIG).read_text().replace('onnx = ""', 'onnx = "net.onnx"')
        (play / CONFIG).write_text(config)
        found = check(Project.open(play)).problems
        assert len(found) == len(problems)
        assert all(why in said for why, said in zip(problems, found, strict=True))
    assert "helpers compute the model exactly" in invoke("check", play).output
    write_lookup(play / "net.onnx", place, device.rows, factor=1)
    told = " ".join(invoke("check", play).output.split())
    assert "general path" in told
    assert "whole numbers of features times 1: write (x * 256).long()" in told


def test_a_network_that_looks_up_a_number_is_warned_of_by_every_command_that_reads_it(tmp_path: Path) -> None:
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    play = tmp_path / "play"
    encoder = check(Project.open(play)).encoder
    assert encoder is not None
    [place] = [place for place, one in enumerate(encoder.columns) if one.name == "pages"]
    write_lookup(play / "net.onnx", place, 256, alone=True)
    config = (play / CONFIG).read_text().replace('onnx = ""', 'onnx = "net.onnx"')
    (play / CONFIG).write_text(config)
    found = check(Project.open(play))
    [warning] = found.warnings
    assert f"reads feature {place} (pages) only as rows of a table" in warning
    assert not found.problems
    (tmp_path / "encoder.json").write_bytes(encode(encoder))
    model_show = ("model", "show", play / "net.onnx", "--encoder", tmp_path / "encoder.json")
    for words in (("quickstart", "check", play), model_show):
        shown = CliRunner().invoke(app, list(map(str, words)))
        assert shown.exit_code == 0, shown.output
        assert f"warning: {warning}" in shown.stderr
    as_json = CliRunner().invoke(app, [*map(str, model_show), "--json"])
    assert json.loads(as_json.stdout)["warnings"] == [warning]


def write_lookup(path: Path, place: int, rows: int, factor: int = 256, *, alone: bool = False) -> None:
    """Write a network of three features that looks one up in a table, alone or next to all as numbers."""

    class Lookup(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = torch.nn.Embedding(rows, 2), torch.nn.Linear(2 if alone else 5, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            codes = (x[:, place] * factor).long()
            numbers = [] if alone else [x]
            found: torch.Tensor = self.last(torch.cat([self.table(codes), *numbers], 1))
            return found

    path.write_bytes(as_onnx(Lookup(), num_features=3))


@pytest.mark.parametrize(
    ("widths", "final", "loss"),
    [
        ([3, 4, 1], "linear", Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS),
        ([3, 4, 1], "sigmoid", Loss.BINARY_CROSS_ENTROPY),
        ([3, 4, 2], "linear", Loss.CROSS_ENTROPY),
    ],
)
def test_the_usual_loss_is_of_what_ones_own_model_puts_out(
    widths: list[int], final: str, loss: Loss, tmp_path: Path
) -> None:
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    play = tmp_path / "play"
    (play / "net.onnx").write_bytes(dense_network(widths, "relu", seed=1, final=final))
    config = (play / CONFIG).read_text()
    (play / CONFIG).write_text(config.replace('onnx = ""', 'onnx = "net.onnx"'))
    found = check(Project.open(play))
    assert (found.problems, found.loss) == ((), loss)


def with_loss(folder: Path, final: str, loss: str) -> Checked:
    """Check a project with a network of one's own and a loss."""
    assert new(folder, CASES["semicolons"]).exit_code == 0
    play = folder / "play"
    (play / "net.onnx").write_bytes(dense_network([3, 4, 1], "relu", seed=1, final=final))
    config = (play / CONFIG).read_text().replace('onnx = ""', 'onnx = "net.onnx"')
    (play / CONFIG).write_text(config.replace('# loss = "cross_entropy"', f'loss = "{loss}"'))
    return check(Project.open(play))


@pytest.mark.parametrize(
    ("final", "loss", "why"),
    [
        (
            "sigmoid",
            "binary_cross_entropy_with_logits",
            "ends with Sigmoid.*use the loss binary_",
        ),
        ("linear", "binary_cross_entropy", "use binary_cross_entropy_with_logits on logits"),
    ],
)
def test_a_loss_of_another_output_is_a_problem(final: str, loss: str, why: str, tmp_path: Path) -> None:
    [problem] = with_loss(tmp_path, final, loss).problems
    assert re.search(rf"\[training\] loss: the .*{why}", problem)


@pytest.mark.parametrize(("final", "warned"), [("linear", 1), ("sigmoid", 0)])
def test_mse_of_a_number_that_is_no_chance_is_warned_of(final: str, warned: int, tmp_path: Path) -> None:
    found = with_loss(tmp_path, final, "mse")
    assert found.problems == ()
    assert sum("two classes, and mse" in line for line in found.warnings) == warned


def test_a_column_without_a_name_is_nobodys_person(tmp_path: Path) -> None:
    rows = [(str(row % 7), *cells) for row, cells in enumerate(visits())]
    assert new(tmp_path, Case(content=text(rows, header=("", *HEADER)).encode())).exit_code == 0
    project = Project.open(tmp_path / "play")
    found = check(project)
    assert (found.problems, found.devices, found.reported) == ((), None, 320)
    change(tmp_path / "play", '"",  # ', "# ")
    [problem] = check(Project.open(tmp_path / "play")).problems
    assert "ignore must name the column without a name" in problem


def test_new_names_every_wrong_column_at_once(tmp_path: Path) -> None:
    table = tmp_path / "visits.csv"
    table.write_text(text(visits()))
    wrong = ("--label", "sold", "--value", "paid", "--value", "device", "--key", "land")
    refused = invoke("new", tmp_path / "play", "--csv", table, *wrong)
    assert refused.exit_code == 1
    label, paid, device, land = refused.output.splitlines()
    assert label.startswith("InvalidTask: --label names 'sold', but visits.csv has no such column; it has ")
    assert paid.startswith("InvalidTask: [measure] values names 'paid', but visits.csv has no such column")
    assert device.startswith("InvalidTask: [measure] values: column 'device' holds words")
    assert land.startswith("InvalidTask: [measure] keys names 'land', but visits.csv has no such column")
    assert not (tmp_path / "play").exists()


@pytest.mark.parametrize("label", [(), ("--label", "bought")])
def test_codes_that_are_summed_and_amounts_or_people_that_group_are_warned_of(
    tmp_path: Path, label: tuple[str, ...]
) -> None:
    table, play = tmp_path / "ads.csv", tmp_path / "play"
    lines = "".join(
        f"0{4_100 + row % 30},{7_000 + row % 40},{row % 200 / 4},{row % 9},{'yes' if row % 3 else 'no'}\n"
        for row in range(8_000)
    )
    table.write_text(f"ZIP,Kundennr,Refund,pages,bought\n{lines}")
    asked = ("--value", "ZIP", "--value", "pages", "--key", "Kundennr", "--key", "Refund")
    made = invoke("new", play, "--csv", table, *label, *asked)
    assert made.exit_code == 0, made.output
    checked = invoke("check", play)
    for shown in (made.output, checked.output):
        warned = [line for line in shown.splitlines() if line.startswith("warning: [measure] ")]
        by_column = {line.split("'")[1]: line for line in warned if " column '" in line}
        assert by_column.keys() == {"ZIP", "Kundennr", "Refund"}
        assert (
            "is summed, and seems to hold numbers that name things, by the column's name" in by_column["ZIP"]
        )
        assert "[measure] keys: column 'Kundennr' seems to hold ids of people" in by_column["Kundennr"]
        assert "holds 200 different numbers, and each makes a group" in by_column["Refund"]


def test_words_that_are_counted_and_codes_that_group_are_not_warned_of(tmp_path: Path) -> None:
    table, play = tmp_path / "ads.csv", tmp_path / "play"
    table.write_text("ZIP,pages\n" + "".join(f"0{4_100 + row % 150},{row % 9}\n" for row in range(8_000)))
    asked = ("--value", "pages", "--value", "pages==3", "--key", "ZIP")
    assert invoke("new", play, "--csv", table, *asked).exit_code == 0
    assert "warning: [measure] values: column" not in (said := invoke("check", play).output)
    assert "warning: [measure] keys" not in said


def test_an_error_of_new_is_all_that_is_said(tmp_path: Path) -> None:
    table = tmp_path / "visits.csv"
    table.write_text(text(visits()))
    refused = invoke("new", tmp_path / "play", "--csv", table, "--label", "bought", "--value", "wrong")
    assert refused.exit_code != 0
    assert "[measure] values names 'wrong'" in str(refused.exception)
    assert refused.output == ""
    assert invoke("new", tmp_path / "play", "--csv", table, "--label", "bought").exit_code == 0
    again = invoke("new", tmp_path / "play", "--csv", table, "--label", "bought")
    assert "exists already" in str(again.exception)
    assert again.output == ""


def test_all_that_is_wrong_with_a_measurement_is_said_at_once(tmp_path: Path) -> None:
    new(tmp_path, Case(text(visits()).encode(), None))
    values = (
        '[{column = "pages", quantiles = [0.5, 0.5]}, {column = "device", word = "phone", quantiles = [0.5]}]'
    )
    keys = '["pages", "bought", "lost", "lost"]'
    change(tmp_path / "play", "\nvalues = []", f"\nvalues = {values}")
    change(tmp_path / "play", "\nkeys = []", f"\nkeys = {keys}")
    problems = [one.removeprefix("[measure] ") for one in check(Project.open(tmp_path / "play")).problems]
    for begin in (
        "keys names 'lost' twice",
        "values: 'device' counts 'phone' and has quantiles",
        "values: 'pages' names a quantile twice",
        "keys names 'pages', which is the label or a measured",
        "keys names 'bought', which is the label or a measured",
        "keys names 'lost', but",
        "values: 'pages' has no most",
    ):
        assert len([one for one in problems if one.startswith(begin)]) == 1
    assert len(problems) == 7


def new_on_devices(folder: Path) -> Result:
    """A project of 200 people with two visits each."""
    folder.mkdir(exist_ok=True)
    rows = [(f"p{row % 200}@mail.example", *cells) for row, cells in enumerate(visits())]
    (folder / "visits.csv").write_text(text(rows, header=("who", *HEADER)))
    return invoke(
        "new", folder / "play", "--csv", folder / "visits.csv", "--label", "bought", "--person", "who"
    )


def test_a_project_of_devices_counts_people_and_their_column_is_no_feature(tmp_path: Path) -> None:
    made = new_on_devices(tmp_path)
    assert made.exit_code == 0
    assert "person 'who': 200 people; empty in 0 rows" in made.output
    found = check(Project.open(tmp_path / "play"))
    assert (found.problems, found.devices, found.reported, found.num_features) == ((), 160, 320, 3)
    assert found.loss is Loss.CROSS_ENTROPY
    assert "320 of them on 160 people's devices" in invoke("check", tmp_path / "play").output


def test_devices_that_hold_one_row_each_are_warned_of_next_to_people_who_repeat(tmp_path: Path) -> None:
    rows = [(f"s-{row}", f"M-{1000 + row % 90}", *cells) for row, cells in enumerate(visits())]
    (tmp_path / "visits.csv").write_text(text(rows, header=("session", "Mitglied", *HEADER)))
    table = ("--csv", tmp_path / "visits.csv", "--label", "bought", "--person", "session")
    made = invoke("new", tmp_path / "play", *table)
    assert made.exit_code == 0, made.output
    for said in (made.output, invoke("check", tmp_path / "play").output):
        assert "[federated] person is 'session', which is different in each of 400 rows" in said
        assert "column 'Mitglied' repeats (90 different in 400 rows, up to 5 each)" in said
        assert '[federated] person = "Mitglied" makes it of a person' in said
    change(tmp_path / "play", "not_people = []", 'not_people = ["Mitglied"]')
    found = check(Project.open(tmp_path / "play"))
    assert not found.problems
    [line] = found.table_warnings
    assert line.startswith("[federated] person is 'session', which is different in each")


def new_of_people(folder: Path, *options: str) -> Result:
    """A project of reports of a table in which 250 people have one row to three."""
    rows = [(f"p{row % 250 if row < 350 else row % 50}", *cells) for row, cells in enumerate(visits())]
    (folder / "visits.csv").write_text(text(rows, header=("user_id", *HEADER)))
    return invoke("new", folder / "play", "--csv", folder / "visits.csv", *options)


@pytest.mark.parametrize("options", [("--label", "bought"), ("--value", "pages", "--key", "device")])
def test_epsilon_is_said_to_be_of_one_row_where_people_have_several(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    made = new_of_people(tmp_path, *options)
    assert made.exit_code == 0, made.output
    for said in (made.output, invoke("check", tmp_path / "play").output):
        assert said.count("column 'user_id' repeats (250 different in 400 rows, up to 3 each)") == 1
    # The same words under another name are asked about
    (tmp_path / "visits.csv").write_text((tmp_path / "visits.csv").read_text().replace("user_id", "who"))
    assert "column 'who' repeats (250 different in 400 rows, up to 3 each): if it names people" in (
        invoke("new", tmp_path / "asked", "--csv", tmp_path / "visits.csv", *options).output
    )
    # Until the owner answers
    change(tmp_path / "asked", "not_people = []", 'not_people = ["who"]')
    assert "repeats" not in invoke("check", tmp_path / "asked").output
    change(tmp_path / "asked", 'not_people = ["who"]', 'not_people = ["whom"]')
    assert "[data] not_people names 'whom', but visits.csv has no such column" in (
        invoke("check", tmp_path / "asked").output
    )
    home = new_on_devices(tmp_path / "home")
    assert "repeats" not in home.output + invoke("check", tmp_path / "home" / "play").output


def name_person(folder: Path, *settings: str) -> Path:
    """Name the person in `[task]` of a project of `new_of_people`, with more settings of it."""
    change(folder / "play", 'person = ""            # a', "\n".join(('person = "user_id"', *settings, "#")))
    return folder / "play"


@pytest.mark.parametrize("column", ["user_id", "number"])
def test_an_epsilon_of_a_person_is_checked_by_the_persons_budget(column: str, tmp_path: Path) -> None:
    rows = [(str(7_000 + 13 * (row % 150)), *cells) for row, cells in enumerate(visits())]
    (tmp_path / "visits.csv").write_text(text(rows, header=(column, *HEADER)))
    options = ("--label", "bought", "--value", "pages", "--key", "device")
    assert invoke("new", tmp_path / "play", "--csv", tmp_path / "visits.csv", *options).exit_code == 0
    of_row = check(Project.open(tmp_path / "play"))
    config = (tmp_path / "play" / CONFIG).read_text()
    # Suggested as words that name things, which the person's column is not any more
    assert ('"user_id",  # numbers that name things' in config) == (column == "user_id")
    change(tmp_path / "play", 'person = ""            # a', f'person = "{column}" # a')
    found = check(Project.open(tmp_path / "play"))
    assert not found.problems
    # 100 people have three rows and 50 two; nine of ten stay with three
    assert (found.people, found.devices) == (120, None)
    assert found.reported + sum(found.left_out.values()) < found.rows == 400
    assert found.encoder is not None
    assert {column.name for column in found.encoder.columns} == {"device", "minutes"}
    [note] = found.person_notes
    ratio = float(note.split("the noise of training ")[1].split(" times")[0])
    assert ratio == pytest.approx(3, rel=0.02)
    assert f"[measure] intervals {ratio:.3g} times as wide" in note
    wider = found.forecasts[-1].half_width / of_row.forecasts[-1].half_width
    assert wider == pytest.approx(3, rel=0.05)
    said = invoke("check", tmp_path / "play").output
    assert "[measure] at epsilon 0.5 of a person, over" in said
    assert f"{found.reported} of them reported by 120 people" in said
    assert "repeats (" not in said


def test_a_column_of_ids_that_is_a_key_is_not_asked_about(tmp_path: Path) -> None:
    rows = [(f"a{row // 2 % 40 if row % 2 else 0}", *cells) for row, cells in enumerate(visits())]
    (tmp_path / "visits.csv").write_text(text(rows, header=("article", *HEADER)))
    for key, asked in (("article", 0), ("device", 1)):
        options = ("--csv", tmp_path / "visits.csv", "--value", "pages", "--key", key)
        made = invoke("new", tmp_path / key, *options)
        assert made.exit_code == 0, made.output
        for said in (made.output, invoke("check", tmp_path / key).output):
            assert said.count("column 'article' repeats (40 different in 400 rows") == asked


def test_rows_of_a_person_beyond_the_most_are_counted_by_check(tmp_path: Path) -> None:
    assert new_of_people(tmp_path, "--value", "pages", "--key", "device").exit_code == 0
    name_person(tmp_path, "rows_per_person = 1")
    found = check(Project.open(tmp_path / "play"))
    assert (found.problems, found.reported, found.people) == ((), 250, 250)
    assert found.left_out == {"column 'user_id': beyond 1 row of a person": 150}
    [note] = found.person_notes
    assert note == "[task] epsilon is of a person 'user_id' with up to 1 row"
    said = invoke("check", tmp_path / "play").output
    assert "150 rows are left out: column 'user_id': beyond 1 row of a person" in said
    assert "250 rows, all of them reported by 250 people and measured" in said


def test_more_rows_of_a_person_than_anybody_has_are_warned_of(tmp_path: Path) -> None:
    assert new_of_people(tmp_path, "--label", "bought").exit_code == 0
    name_person(tmp_path, "rows_per_person = 9")
    [warning] = check(Project.open(tmp_path / "play")).table_warnings
    assert warning == (
        "[task] rows_per_person is 9, but nobody has more than 3 rows: lower it to 3, for less noise"
    )


def test_people_so_few_that_nobody_is_left_for_the_panel_are_refused(tmp_path: Path) -> None:
    """Three devices: a tenth of three people is nobody."""
    assert new_of_people(tmp_path, "--label", "bought").exit_code == 0
    config = name_person(tmp_path, "rows_per_person = 200") / CONFIG
    asked = config.read_text().replace('person = "user_id"', 'person = "device"', 1)
    config.write_text(asked.replace("panel = 0.2", "panel = 0.1", 1))
    assert (
        "[task] person is 'device', of 3 people: with [data] panel = 0.1 nobody is left to test the model: "
        "name a column of more people"
    ) in check(Project.open(tmp_path / "play")).problems


@pytest.mark.parametrize("label", ["bought", ""])
@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("user_id", "user", "person names 'user', but visits.csv has no such column; did you mean 'user_id'"),
        ("user_id", "minutes", "person names 'minutes', which [measure] values names too"),
        ("user_id", "device", "person names 'device', which [measure] keys names too"),
        ("rows_per_person = 2", "rows_per_person = 0", "rows_per_person is 0, but must be from 1 to 1024"),
        ("rows_per_person = 2", "rows_per_person = 1.5", "rows_per_person is 1.5, but must be a whole"),
        ('person = "user_id"', 'person = ""', "rows_per_person is 2, but person is empty"),
    ],
)  # fmt: skip
def test_a_wrong_setting_of_a_person_is_answered_in_one_line(
    label: str, before: str, after: str, why: str, tmp_path: Path
) -> None:
    options = ("--value", "minutes", "--key", "device", *(("--label", label) if label else ()))
    assert new_of_people(tmp_path, *options).exit_code == 0
    name_person(tmp_path, "rows_per_person = 2")
    config = tmp_path / "play" / CONFIG
    head, task, rest = config.read_text().partition("[task]")
    config.write_text(head + task + rest.replace(before, after, 1))
    refused = invoke("check", tmp_path / "play")
    assert refused.exit_code == 1
    [line] = refused.output.strip().splitlines()
    assert f"[task] {why}" in line


def test_a_person_of_reports_is_not_the_label_and_not_of_devices(tmp_path: Path) -> None:
    assert new_of_people(tmp_path, "--label", "bought").exit_code == 0
    config = name_person(tmp_path) / CONFIG
    text_of = config.read_text()
    config.write_text(text_of.replace('person = "user_id"', 'person = "bought"', 1))
    assert "[task] person names 'bought', which is the label" in invoke("check", tmp_path / "play").output
    config.write_text(text_of.replace('person = ""', 'person = "user_id"', 1))
    [problem] = check(Project.open(tmp_path / "play")).problems
    assert problem.startswith("[task] person is for reports, and [federated] person for devices")
    config.write_text(text_of.replace("not_people = []", 'not_people = ["user_id"]'))
    [problem] = check(Project.open(tmp_path / "play")).problems
    assert problem.startswith("[task] person names 'user_id', which [data] not_people names too: remove it")
    config.write_text(text_of.replace('csv = "', 'csv = "" # "').replace('label = "bought"', 'label = ""'))
    assert "[task] person is 'user_id', but [data] csv is empty" in invoke("check", tmp_path / "play").output


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (
            'person = "who"',
            'person = "whom"',
            r"\[federated\] person names 'whom', but visits.csv has no such",
        ),
        ('person = "who"', 'person = "bought"', r"\[federated\] person names 'bought', which is the label"),
        (
            "min_batch_size = 100",
            "min_batch_size = 161",
            "min_batch_size is 161, but 160 people's devices train",
        ),
        (
            "[federated] ",
            '[measure]\nvalues = [{column = "pages"}]\n[federated] ',
            r"\[measure\] needs reports",
        ),
        (
            "rounds = 20",
            "rounds = 20\nlearning_rate = 1",
            r"\[training\] learning_rate is of jobs over reports",
        ),
        (
            "rounds = 20",
            "rounds = 20\nbatch_size = 256",
            r"\[training\] batch_size .* set \[federated\] batch_size",
        ),
        ("rounds = 20", 'rounds = 20\nloss = "mse"', r"\[training\] loss: "),
        (
            "sampling_rate = 1",
            "sampling_rate = 1.5",
            r"\[federated\] sampling_rate is 1.5, but must be above 0 and at most 1",
        ),
    ],
)
def test_a_wrong_setting_of_devices_is_found_by_name(
    before: str, after: str, why: str, tmp_path: Path
) -> None:
    assert new_on_devices(tmp_path).exit_code == 0
    path = tmp_path / "play" / CONFIG
    config = path.read_text()
    assert before in config
    path.write_text(config.replace(before, after))
    refused = invoke("check", tmp_path / "play")
    assert refused.exit_code != 0
    said = f"{refused.output} {refused.exception}"
    assert re.search(why, said), said


def test_devices_need_torch_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert new_on_devices(tmp_path).exit_code == 0
    project = Project.open(tmp_path / "play")
    no_table = replace(project, settings=replace(project.settings, data=DataSettings()))
    assert "[federated] person is 'who', but [data] csv is empty" in check(no_table).problems[0]
    monkeypatch.setattr("adserver.quickstart.column_check.find_spec", lambda _: None)
    [problem] = check(project).problems
    assert problem.startswith("[federated] person: torch is not installed")


def test_a_model_on_the_general_path_needs_torch_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, model = tmp_path / "visits.csv", tmp_path / "gelu.onnx"
    table.write_text(
        "minutes,bought\n" + "".join(f"{row % 50},{'yes' if row % 3 else 'no'}\n" for row in range(900))
    )
    model.write_bytes(dense_network([1, 3, 1], "gelu", seed=0))
    made = invoke("new", tmp_path / "play", "--csv", table, "--label", "bought", "--model", model)
    assert made.exit_code == 0, made.output
    project = Project.open(tmp_path / "play")
    assert not check(project).problems
    monkeypatch.setattr("adserver.quickstart.model_check.find_spec", lambda _: None)
    [problem] = check(project).problems
    assert "pip install torch==" in problem
    assert "Gelu" in problem


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--person", "who"), "name columns of a table: give --csv"),
        (
            ("--csv", "visits.csv", "--label", "bought", "--person", "who", "--key", "device"),
            "leave out --value",
        ),
        (("--csv", "visits.csv", "--label", "bought", "--person", "whom"), "has no column 'whom'"),
        (("--csv", "visits.csv", "--label", "bought", "--person", "bought"), "both name 'bought'"),
    ],
)
def test_a_person_goes_with_a_table_and_no_measurement(
    arguments: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert new_on_devices(tmp_path).exit_code == 0
    refused = invoke("new", tmp_path / "other", *arguments)
    assert refused.exit_code != 0
    assert why in " ".join(f"{refused.output} {refused.exception}".replace("│", " ").split())


def new_without_label(folder: Path, *options: str) -> Result:
    """A project of the table with gaps that measures minutes by device."""
    (folder / "visits.csv").write_text(with_gaps())
    measured = ("--value", "minutes", "--key", "device")
    return invoke("new", folder / "play", "--csv", folder / "visits.csv", *measured, *options)


def test_without_a_label_every_row_is_reported_and_forecast(tmp_path: Path) -> None:
    made = new_without_label(tmp_path)
    assert made.exit_code == 0, made.output
    assert "without --label no model is trained, and every row is reported" in made.output
    assert "becomes" not in made.output
    project = Project.open(tmp_path / "play")
    found = check(project)
    assert found.problems == ()
    # No training shares the budget
    assert project.settings.measure.epsilon == project.settings.task.epsilon / 2
    text = (tmp_path / "play" / CONFIG).read_text()
    assert "\nepsilon = 2          # what this may cost: half of the budget is suggested, as no " in text
    assert (found.rows, found.reported, found.left_out, found.loss) == (ROWS, ROWS, {}, None)
    assert [one.name for one in found.forecasts] == ["minutes", "count"]
    # The median of the groups is of all rows: with a panel it was four fifths of that.
    counts = Counter(cells["device"] for cells in csv.DictReader(with_gaps().splitlines()))
    assert found.forecasts[-1].typical == median(counts.values())
    said = invoke("check", tmp_path / "play").output
    assert f"{ROWS} rows, all of them reported and measured; no model is trained" in said


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("publish = []", 'publish = []\nclasses = ["yes"]', "[data] classes is for training"),
        ("publish = []", "publish = []\npanel = 0.3", "[data] panel is for training"),
        ("[task] ", "[model]\nhidden = [3]\n[task] ", "[model] is for training, but [data] label is empty"),
        ("[task] ", "[training]\nrounds = 3\n[task] ", "[training] is for training"),
        ("publish = []", 'publish = ["shop"]', "[data] publish names 'shop', but visits.csv has no such"),
        (
            "min_batch_size = 100",
            "min_batch_size = 401",
            "browsers report 400 rows: take a table with more rows",
        ),
        (
            "epsilon = 4 ",
            "epsilon = 0.4 ",
            "[measure] epsilon is 2, but the budget, [task] epsilon, is 0.4: lower",
        ),
        ('keys = ["device"]', 'keys = ["devise"]', "[measure] keys names 'devise'"),
        ('\nkeys = ["device"]', "\nkeys = [3]", "[measure] keys, entry 1 is 3, but must be a text"),
    ],
)
def test_a_wrong_setting_of_a_project_without_a_label_has_one_line(
    before: str, after: str, why: str, tmp_path: Path
) -> None:
    assert new_without_label(tmp_path).exit_code == 0
    change(tmp_path / "play", before, after)
    refused = invoke("check", tmp_path / "play")
    assert refused.exit_code == 1
    [line] = refused.stderr.splitlines()
    assert why in line


def test_a_measurement_is_planned_once_and_part_by_part_only_to_list_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert new_without_label(tmp_path).exit_code == 0
    planned = list[MeasureSettings]()

    def count(table: Table, data: DataSettings, measure: MeasureSettings) -> MeasurementPlan | None:
        planned.append(measure)
        return plan_measurement(table, data, measure)

    for module in ("column_check", "measurement_forecast"):
        monkeypatch.setattr(f"adserver.quickstart.{module}.plan_measurement", count)
    project = Project.open(tmp_path / "play")
    assert check(project).problems == ()
    assert planned == [project.settings.measure]
    change(tmp_path / "play", 'keys = ["device"]', 'keys = ["devise", "moon"]')
    assert len(check(Project.open(tmp_path / "play")).problems) == 2


def test_spellings_of_a_key_are_warned_of_without_a_label(tmp_path: Path) -> None:
    rows = [(a, "Phone" if row < 30 else b, *rest) for row, (a, b, *rest) in enumerate(visits())]
    (tmp_path / "visits.csv").write_text(text(rows))
    made = invoke("new", tmp_path / "play", "--csv", tmp_path / "visits.csv", "--key", "device")
    assert made.exit_code == 0
    assert "column 'device' has words that differ in case" in made.stderr
    assert "column 'device' has words that differ in case" in invoke("check", tmp_path / "play").stderr


def test_all_wrong_settings_are_found_at_once(tmp_path: Path) -> None:
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    path = tmp_path / "play" / CONFIG
    path.write_text(
        path.read_text()
        .replace("collusion_epsilon = 8", "collusion_epsilon = 2")
        .replace("codes = []", 'codes = ["x"]')
    )
    assert len(check(Project.open(tmp_path / "play")).problems) == 2


def test_a_run_names_the_same_wrong_settings_as_check(tmp_path: Path) -> None:
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    change(tmp_path / "play", "clip_norm = 10", "clip_norm = 0")
    change(tmp_path / "play", "panel = 0.2", "panel = 2")
    change(tmp_path / "play", "codes = []", 'codes = ["x"]')
    checked, ran = (invoke(command, tmp_path / "play") for command in ("check", "run"))
    assert (checked.exit_code, ran.exit_code) == (1, 1)
    assert len(checked.stderr.splitlines()) == 3
    assert ran.stderr == checked.stderr


def test_a_model_is_not_blamed_for_a_wrong_column_but_found_missing(tmp_path: Path) -> None:
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    play = tmp_path / "play"
    change(play, "codes = []", 'codes = ["x"]')
    change(play, 'onnx = ""', 'onnx = "own.onnx"')
    assert [one[:12] for one in check(Project.open(play)).problems] == ["[data] codes", "[model] onnx"]
    (play / "own.onnx").write_bytes(dense_network([3, 1], "relu", seed=1, final="linear"))
    assert [one[:12] for one in check(Project.open(play)).problems] == ["[data] codes"]


def test_settings_that_cannot_be_read_hide_no_others_and_bring_no_false_ones(tmp_path: Path) -> None:
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    path, before = tmp_path / "play" / CONFIG, (tmp_path / "play" / CONFIG).read_text()

    def found(*changes: tuple[str, str]) -> list[str]:
        text = before
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        refused = invoke("check", tmp_path / "play")
        assert refused.exit_code == 1
        return refused.stderr.splitlines()

    panel, hidden, maybe = found(
        ("panel = 0.2", "panel = 20"), ("# hidden = [32]", "hiden = [32]"), ('"yes",  # ', '"maybe",  # ')
    )
    assert panel == "InvalidTask: [data] panel is 20, but must be between 0 and 1"
    assert hidden == "InvalidTask: [model] hiden is no setting: did you mean hidden?"
    assert maybe.startswith("InvalidTask: [data] classes names 'maybe'")
    most, key = found(
        ("values = []", 'values = [{column = "pages", most = -5}]'), ("\nkeys = []", '\nkeys = ["devise"]')
    )
    assert most == "InvalidTask: [measure] values, entry 1, most is -5, but must be above 0"
    assert key.startswith("InvalidTask: [measure] keys names 'devise'")
    for shares, expected in (("[1.5]", "quantiles, entry 1 is 1.5, but must be between 0 and 1"),
                             ("0.5", "quantiles is 0.5, but must be a list, such as [0.5]")):  # fmt: skip
        [share] = found(("values = []", f'values = [{{column = "pages", most = 5, quantiles = {shares}}}]'))
        assert share == f"InvalidTask: [measure] values, entry 1, {expected}"
    # By default all columns are features, of which `visit` looks like identifiers
    [ignored] = found(("ignore = [", "ignore = [3, "))
    assert ignored.startswith("InvalidTask: [data] ignore, entry 1 is 3, but must be a text")
    # Its epsilon is above the budget by default only
    [budget] = found(("epsilon = 4 ", "epsilon = 0 "), ("epsilon = 3 ", "epsilon = 5 "))
    assert budget == "InvalidTask: [task] epsilon is 0, but must be above 0"
    # Epsilons are compared whatever the rows are, and where the table cannot be read
    over = "InvalidTask: [training] epsilon is 9, but the budget, [task] epsilon, is 4"
    for wrong in (("panel = 0.2", "panel = 1.2"), ('csv = "', 'csv = "no-')):
        lines = found(
            wrong, ('optimizer = "momentum"', 'optimizer = "momentun"'), ("epsilon = 3 ", "epsilon = 9 ")
        )
        assert sum("momentun" in line for line in lines) == 1
        assert sum(line.startswith(over) for line in lines) == 1
        assert len(lines) == 3
    # All are named, however many they are
    assert (
        len(found(*((f"{name} = ", f"{name}x = ") for name in ("csv", "panel", "onnx", "rounds", "person"))))
        >= 5
    )


def test_training_and_measurement_share_the_budget(tmp_path: Path) -> None:
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    path = tmp_path / "play" / CONFIG
    before = path.read_text().replace("values = []", 'values = [{column = "pages", most = 30}]')
    path.write_text(before)
    assert not check(Project.open(tmp_path / "play")).problems
    # 3 and 2 cost less than 4 together, as the ledger adds them up
    path.write_text(before.replace("epsilon = 0.5", "epsilon = 2"))
    assert not check(Project.open(tmp_path / "play")).problems
    path.write_text(before.replace("epsilon = 0.5", "epsilon = 3.5"))
    [problem] = check(Project.open(tmp_path / "play")).problems
    assert re.match(r"\[training\] epsilon is 3, but next to \[measure\] epsilon 3.5 the budgets, ", problem)


def test_the_budget_with_one_helper_counts_before_a_run_too(tmp_path: Path) -> None:
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    play = tmp_path / "play"
    change(play, "collusion_epsilon = 8", "collusion_epsilon = 4")
    [problem] = check(Project.open(play)).problems
    assert "collusion_epsilon 4, leave it 2." in problem
    left = re.search(r"leave it ([0-9.]+):", problem)
    assert left is not None
    change(play, "epsilon = 3 ", f"epsilon = {left[1]} ")
    assert not check(Project.open(play)).problems


def test_people_devices_have_the_same_budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert new_on_devices(tmp_path).exit_code == 0
    play = tmp_path / "play"
    assert not check(Project.open(play)).problems
    change(play, "collusion_epsilon = 8", "collusion_epsilon = 4")
    [problem] = check(Project.open(play)).problems
    left = re.search(r"leave it ([0-9.]+):", problem)
    assert left is not None
    change(play, "epsilon = 3 ", f"epsilon = {left[1]} ")
    assert not check(Project.open(play)).problems


def test_a_batch_that_a_run_would_be_refused_for_is_found_before(tmp_path: Path) -> None:
    assert new(tmp_path, CASES["semicolons"]).exit_code == 0
    play = tmp_path / "play"
    change(play, "# rounds = 120", "batch_size = 50\nrounds = 120")
    [problem] = check(Project.open(play)).problems
    assert problem.startswith("[training] cannot be asked of 320 reports: the batch size is 50")


def test_the_width_of_a_measurements_intervals_is_said_before_it_runs(tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_text(text(visits()))
    table = ("--csv", tmp_path / "visits.csv", "--label", "bought")
    made = invoke("new", tmp_path / "play", *table, "--value", "minutes", "--key", "device")
    assert made.exit_code == 0
    checked = invoke("check", tmp_path / "play")
    assert (
        f"how wide intervals of the sums will be: adserver quickstart check {tmp_path / 'play'}"
        in made.output
    )
    lines = checked.output.splitlines()
    at = lines.index("[measure] at epsilon 0.5, over 320 reported rows, 99 % intervals are about:")
    assert " ".join(lines[at + 1].split()) == "value most level rows cut interval median best most"
    shown = lines[at + 2 : at + 6]
    assert [line.split()[0] for line in shown] == ["minutes", "by", "count", "by"]
    assert all(re.search(r" ± [0-9.]+", line) and len(line) <= 80 for line in shown)
    assert "interval" not in made.output.replace("how wide intervals", "")
    assert not check(Project.open(tmp_path / "play")).problems
    assert "warning: [measure]" not in checked.output
    change(tmp_path / "play", "epsilon = 0.5", "epsilon = 0.05")
    narrow = invoke("check", tmp_path / "play")
    assert narrow.exit_code == 0
    assert "is wider than a typical group's sum for minutes" in narrow.output


def test_numbers_that_look_like_identifiers_are_warned_of_where_they_are_features(tmp_path: Path) -> None:
    rows = [(*cells[:3], str(10**9 + 7 * row), cells[-1]) for row, cells in enumerate(visits())]
    assert new(tmp_path, Case(text(rows).encode())).exit_code == 0
    play = tmp_path / "play"
    assert not check(Project.open(play)).table_warnings
    config = re.sub(r"ignore = \[[^]]*\]", 'ignore = ["visit"]', (play / CONFIG).read_text(), count=1)
    (play / CONFIG).write_text(config)
    (kept,) = check(Project.open(play)).table_warnings
    assert kept.startswith(
        "[data] ignore: column 'pages' is a feature, and `new` leaves it out: an identifier: "
    )


def test_a_panel_of_few_rows_and_codes_of_many_words_are_warned_of(tmp_path: Path) -> None:
    rows = [(*cells[:3], str(row), cells[-1]) for row, cells in enumerate(visits())]
    assert new(tmp_path, Case(text(rows).encode())).exit_code == 0
    play = tmp_path / "play"
    config = re.sub(r"ignore = \[[^]]*\]", 'ignore = ["visit"]', (play / CONFIG).read_text(), count=1)
    (play / CONFIG).write_text(config)
    change(play, "codes = []", 'codes = ["pages"]')
    change(play, "panel = 0.2", "panel = 0.01")
    checked = invoke("check", play)
    assert checked.exit_code == 0, checked.output
    codes, panel = check(Project.open(play)).table_warnings
    assert codes.startswith("[data] codes: column 'pages' holds 400 different words, of which the encoder ")
    assert codes.endswith("tells the 255 most frequent apart: add 'pages=planned' to words")
    assert panel.startswith("[data] panel is 0.01, which is 4 rows to test and calibrate the model on: raise")
    assert f"warning: {panel}" in checked.output


def test_a_leak_that_its_owner_keeps_is_warned_of_before_a_run(tmp_path: Path) -> None:
    rows = [(cells[-1], *cells) for cells in visits()]
    assert new(tmp_path, Case(content=text(rows, header=("paid", *HEADER)).encode())).exit_code == 0
    play = tmp_path / "play"
    assert check(Project.open(play)).table_warnings == ()
    config = (play / CONFIG).read_text()
    kept = "\n".join(line for line in config.splitlines() if not line.startswith('  "paid"'))
    (play / CONFIG).write_text(kept)
    found = check(Project.open(play))
    [leak] = found.table_warnings
    assert leak.startswith("column 'paid' follows the label")
    assert found.leaks == (leak.partition(": leave it out")[0],)
    assert not found.problems
    assert f"warning: {leak}" in invoke("check", play).output


def test_words_in_several_spellings_are_warned_of_by_new_and_by_check(tmp_path: Path) -> None:
    rows = [(*of[:1], of[1].upper() if row < 3 else of[1], *of[2:]) for row, of in enumerate(visits())]
    made = new(tmp_path, Case(content=text(rows).encode()))
    [warned] = check(Project.open(tmp_path / "play")).table_warnings
    assert warned.startswith("column 'device' has words that differ in case, accents or space only: ")
    assert warned.endswith("; if they mean the same, write them in one way")
    for shown in (made, invoke("check", tmp_path / "play")):
        assert shown.exit_code == 0
        assert f"warning: {warned}" in shown.output
    # A column that is left out is not warned of, unless groups are made of it
    path = tmp_path / "play" / CONFIG
    path.write_text(path.read_text().replace("ignore = [", 'ignore = [\n  "device",'))
    assert check(Project.open(tmp_path / "play")).table_warnings == ()
    path.write_text(path.read_text().replace("keys = []", 'keys = ["device"]'))
    assert check(Project.open(tmp_path / "play")).table_warnings == (warned,)


def test_identifiers_that_the_owner_keeps_need_a_word(tmp_path: Path) -> None:
    rows = [(cells[0], f"device {row}", *cells[2:]) for row, cells in enumerate(visits())]
    (tmp_path / "visits.csv").write_text(text(rows))
    assert (
        invoke("new", tmp_path / "play", "--csv", tmp_path / "visits.csv", "--label", "bought").exit_code == 0
    )
    path = tmp_path / "play" / CONFIG
    kept = "\n".join(line for line in path.read_text().splitlines() if not line.startswith('  "device"'))
    path.write_text(kept)
    [problem] = check(Project.open(tmp_path / "play")).problems
    assert "column 'device' looks like identifiers" in problem
    path.write_text(kept.replace("publish = []", 'publish = ["device"]'))
    assert not check(Project.open(tmp_path / "play")).problems


def with_cells(folder: Path, cells: list[str]) -> Checked:
    """Check the project of a table with another column `extra`, after some of its cells have changed."""
    rows = [(cell, *of) for cell, of in zip(cells, visits(), strict=True)]
    (folder / "visits.csv").write_text(text(rows, header=("extra", *HEADER)))
    if not (folder / "play").exists():
        made = invoke("new", folder / "play", "--csv", folder / "visits.csv", "--label", "bought")
        assert made.exit_code == 0, made.output
    return check(Project.open(folder / "play"))


def test_a_word_that_makes_words_of_numbers_is_warned_of(tmp_path: Path) -> None:
    ages = [str(20 + row % 50) for row in range(ROWS)]
    assert with_cells(tmp_path, ages).table_warnings == ()
    found = with_cells(tmp_path, [*ages[:-1], "unbekannt"])
    assert found.problems == ()
    [warned] = found.table_warnings
    assert warned == (
        "[data] column 'extra' is read as words: numbers in 399 cells and 'unbekannt' in 1: empty those "
        "cells if it is a column of numbers; if it is none, name it in codes"
    )
    assert f"warning: {warned}" in invoke("check", tmp_path / "play").output
    change(tmp_path / "play", "codes = []", 'codes = ["extra"]')
    assert with_cells(tmp_path, [*ages[:-1], "unbekannt"]).table_warnings == ()


@pytest.mark.parametrize(
    ("cell", "last", "why"),
    [
        ("{}.25", "k.A.", "numbers in 399 cells and 'k.A.' in 1: empty those cells, or name it in ig"),
        ("{}.25 €", "12.00 $", "amounts with several units, '€', '$': write the numbers alone"),
        ("{}.25 €", "k.A.", "numbers in 399 cells and 'k.A.' in 1: empty those cells, or name it in"),
    ],
)
def test_a_cell_that_makes_words_of_many_numbers_is_refused_with_the_true_cause(
    cell: str, last: str, why: str, tmp_path: Path
) -> None:
    cells = [cell.format(100 + row * 7919 % 1000) for row in range(ROWS)]
    assert with_cells(tmp_path, cells).problems == ()
    [problem] = with_cells(tmp_path, [*cells[:-1], last]).problems
    assert problem.startswith(f"[data] column 'extra': {why}")
    assert "publish" not in problem


def test_a_cell_that_is_no_date_is_refused_with_its_line_and_the_forms(tmp_path: Path) -> None:
    seen = [f"{1 + row % 28:02}.{1 + row % 12:02}.2026" for row in range(ROWS)]
    assert with_cells(tmp_path, seen).problems == ()
    assert 'dates = ["extra"]' in (tmp_path / "play" / CONFIG).read_text()
    [problem] = with_cells(tmp_path, [*seen[:7], "00.00.0000", *seen[8:-1], "unbekannt"]).problems
    assert problem == (
        "[data] dates names 'extra': visits.csv, line 9: it holds no date: write dates as 2026-11-28, "
        "28.11.2026 or 28 Nov 2026, and times as 2026-11-28 04:50 (1 more cell of the column cannot be read)"
    )


@pytest.mark.parametrize(
    ("name", "cell", "why"),
    [
        ("Full Name", "Ann {}", "names of people, by the column's name"),
        ("Policyholder", "Holder {}", "names of people, by the column's name"),
        ("contact", "Anna {}", "names of people"),
        ("customer", "K{}", "ids of people, by the column's name"),
    ],
)
def test_names_of_people_are_left_out_and_refused_unless_their_owner_publishes_them(
    name: str, cell: str, why: str, tmp_path: Path
) -> None:
    letters = [one + other for one in "abcdefghi" for other in "abcdefghij"]
    rows = [(cell.format(letters[row % 90]), *of) for row, of in enumerate(visits())]
    (tmp_path / "visits.csv").write_text(text(rows, header=(name, *HEADER)))
    play = tmp_path / "play"
    made = invoke("new", play, "--csv", tmp_path / "visits.csv", "--label", "bought")
    assert why in " ".join(made.output.split())
    path = play / CONFIG
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f'  "{name}"')]
    path.write_text("\n".join(lines))
    refused = (
        f"[data] column {name!r} looks like identifiers ({why}), and the encoder is public: name it in "
        "ignore or publish"
    )
    assert check(Project.open(play)).problems == (refused,)
    change(play, "words = []", f'words = ["{name}=planned"]')
    assert check(Project.open(play)).problems == (refused,)
    change(play, "publish = []", f'publish = ["{name}"]')
    assert check(Project.open(play)).problems == ()


def test_ids_of_which_none_has_a_row_are_told_to_be_useless(tmp_path: Path) -> None:
    rows = [(str(1_000 + row * 7 % 300), *of) for row, of in enumerate(visits(900))]
    (tmp_path / "visits.csv").write_text(text(rows, header=("customer id", *HEADER)))
    play, why = tmp_path / "play", "no word of column 'customer id' is in as many rows as one needs for a row"
    made = invoke("new", play, "--csv", tmp_path / "visits.csv", "--label", "bought")
    assert Project.open(play).settings.data.words == ("customer id=planned",)
    checked = invoke("check", play)
    for shown in (made, checked):
        assert shown.exit_code == 0
        assert shown.output.count(why) == 1
    change(play, '"customer id=planned"', '"customer id=50"')
    assert why not in invoke("check", play).output


@pytest.mark.parametrize("setting", ["ignore", "dates"])
def test_a_misspelled_column_has_one_line_and_not_a_second_one_for_the_column_that_was_meant(
    setting: str, tmp_path: Path
) -> None:
    seen = [f"2026-11-{1 + row // 24 % 28:02} {row % 24:02}:{row % 60:02}" for row in range(ROWS)]
    rows: list[tuple[str, ...]] = [(f"K-{row:06}", seen[row], *cells) for row, cells in enumerate(visits())]
    (tmp_path / "visits.csv").write_text(text(rows, header=("customer", "seen", *HEADER)))
    play = tmp_path / "play"
    assert invoke("new", play, "--csv", tmp_path / "visits.csv", "--label", "bought").exit_code == 0
    path, meant = play / CONFIG, "customer" if setting == "ignore" else "seen"
    right = path.read_text()
    path.write_text(right.replace(f'"{meant}"', f'"{meant}x"'))
    [problem] = check(Project.open(play)).problems
    assert problem.startswith(f"[data] {setting} names '{meant}x', but visits.csv has no such column")
    path.write_text(right.replace(f'dates = ["{meant}"]', f'dates = "{meant}"'))
    refused = invoke("check", play).stderr.splitlines()
    assert len(refused) == (1 if setting == "dates" else 0)
    # Without a name that is wrong, it is the column's own line that helps
    path.write_text(right.replace('dates = ["seen"]', "dates = []"))
    [problem] = check(Project.open(play)).problems
    assert "name it in dates, ignore or publish" in problem


def test_check_counts_each_row_once_as_the_run_will(tmp_path: Path) -> None:
    rows: list[tuple[str, ...]] = [
        (a, b, "" if row % 10 == 0 else c, d, "" if row % 100 == 5 else e)
        for row, (a, b, c, d, e) in enumerate(visits())
    ]
    (tmp_path / "visits.csv").write_text(text(rows))
    table = ("--csv", tmp_path / "visits.csv", "--label", "bought", "--value", "minutes")
    assert invoke("new", tmp_path / "play", *table).exit_code == 0
    found = check(Project.open(tmp_path / "play"))
    assert found.left_out == {"column 'bought': no label": 4}
    assert (found.rows, found.reported) == (396, 317)
    said = invoke("check", tmp_path / "play").output
    assert "4 rows are left out: column 'bought': no label" in said
    assert (
        "[measure] of 396 rows, 40 have no 'minutes': such a row is reported, counts in groups, and adds 0"
        in said
    )
    assert "396 rows of 2 classes, 317 of them reported and 79 in the panel" in " ".join(said.split())


@pytest.mark.parametrize(("asked", "width"), [("planned", 1), ("299", 2), ("254", 1)])
def test_a_column_of_many_words_becomes_as_many_features_as_its_rows_need(
    asked: str, width: int, tmp_path: Path
) -> None:
    rows = [(f"app {row % 30 if row % 3 else row // 3}", *cells) for row, cells in enumerate(visits(1_200))]
    (tmp_path / "visits.csv").write_text(text(rows, header=("app", *HEADER)))
    made = invoke("new", tmp_path / "play", "--csv", tmp_path / "visits.csv", "--label", "bought")
    assert made.exit_code == 0
    path = tmp_path / "play" / CONFIG
    path.write_text(path.read_text().replace('"app=planned"', f'"app={asked}"'))
    project = Project.open(tmp_path / "play")
    assert project.settings.data.words == (f"app={asked}",)
    found = check(project)
    assert (found.problems, found.num_features) == ((), 3 + width)
    fitted = fit_counting(
        TableSettings(
            path=tmp_path / "visits.csv",
            label="bought",
            ignore=("visit",),
            words=project.settings.data.vocabularies(),
            training=PlannedTraining(reports=found.reported, epsilon=3.0),
        )
    ).encoder
    assert fitted.num_features == found.num_features


def test_the_sample_needs_no_table(tmp_path: Path) -> None:
    assert invoke("new", tmp_path / "play").exit_code == 0
    found = check(Project.open(tmp_path / "play"))
    assert (found.problems, found.rows, found.num_features) == ((), 569, 30)
    assert found.loss is Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS


def test_of_many_columns_the_first_places_are_told() -> None:
    columns = tuple(NumberColumn(name=f"p{n}", first=0, missing=0, edges=(1.0,)) for n in range(784))
    told = describe_features(Encoder(columns=columns, label=None))
    assert told.startswith("0 p0, 1 p1, ")
    assert told.endswith("49 p49, ... up to 783")


def test_points_that_may_part_thousands_are_asked_about(tmp_path: Path) -> None:
    rows = [f"{n % 90 + 1}.{n:03},{'yes' if n % 3 else 'no'}" for n in range(300)]
    more = [f"{n},{'yes' if n % 2 else 'no'}" for n in range(100, 200)]
    (tmp_path / "units.csv").write_text("\n".join(["units,bought", *rows, *more]))
    invoke("new", tmp_path / "play", "--csv", tmp_path / "units.csv", "--label", "bought")
    (warning,) = [one for one in check(Project.open(tmp_path / "play")).table_warnings if "points" in one]
    assert warning.startswith("column 'units': points are read as decimals")
