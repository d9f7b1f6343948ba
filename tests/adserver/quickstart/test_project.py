"""A project's settings are a file that people read and change; what is wrong in it is told by name."""

import subprocess
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.quickstart.project import CONFIG, Project, new_project
from adserver.quickstart.runs import Steps
from adserver.quickstart.sample_table import sample_table
from adserver.quickstart.settings import (
    DataSettings,
    FederatedSettings,
    Measured,
    MeasureSettings,
    ModelSettings,
    Servers,
    Settings,
    TaskSettings,
    TrainingSettings,
)
from maskedlark.errors import InvalidTask
from maskedlark.model.losses import Loss

SERVERS = Servers(
    helper_0="127.0.0.1:1", helper_1="127.0.0.1:2", adserver_grpc="127.0.0.1:3", adserver_http="127.0.0.1:4"
)
SETTINGS = Settings(servers=SERVERS)


def change(folder: Path, before: str, after: str) -> None:
    said = (folder / CONFIG).read_text()
    assert before in said
    (folder / CONFIG).write_text(said.replace(before, after))


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("label", ["bought", ""])
def test_the_file_says_whose_epsilon_it_is(label: str, rows: int | None, tmp_path: Path) -> None:
    csv = tmp_path / "table.csv"
    csv.touch()
    settings = replace(
        SETTINGS,
        data=DataSettings(csv=str(csv), label=label),
        task=TaskSettings(person='cust"omer', rows_per_person=rows),
        measure=MeasureSettings(keys=("device",)),
    )
    new_project(tmp_path / "play", settings)
    assert Project.open(tmp_path / "play").settings == settings
    text = (tmp_path / "play" / CONFIG).read_text()
    assert "the budget of a person" in text
    assert "rows_per_person = " in text


@pytest.mark.parametrize("person", ["", 'per"son'])
def test_the_file_that_is_written_says_exactly_the_settings(person: str, tmp_path: Path) -> None:
    csv = tmp_path / 'my "table".csv'
    csv.touch()
    settings = Settings(
        servers=SERVERS,
        data=DataSettings(csv=str(csv), label="bought", ignore=("id", "na\\me")),
        model=ModelSettings(hidden=()),
        measure=MeasureSettings()
        if person
        else MeasureSettings(
            values=(Measured(column="bought", word="yes"), Measured(column='pa"id', most=12.5)), keys=("id",)
        ),
        federated=FederatedSettings(person=person, sampling_rate=0.25, epochs=2, learning_rate=0.125),
    )
    new_project(tmp_path / "play", settings)
    assert Project.open(tmp_path / "play").settings == settings
    text = (tmp_path / "play" / CONFIG).read_text()
    of_reports = ("optimizer = ", "schedule = ", "batch_size = 256", "loss = ", "[measure]")
    assert [name in text for name in of_reports] == [not person] * 5


def test_every_setting_is_in_the_file_or_named_in_a_comment(tmp_path: Path) -> None:
    new_project(tmp_path / "play", SETTINGS)
    text = (tmp_path / "play" / CONFIG).read_text()
    assert tomllib.loads(text).keys() == {one.name for one in fields(Settings)}
    assert all(f"{each.name} = " in text for each in fields(TrainingSettings))


def test_a_changed_line_is_what_the_next_run_takes(tmp_path: Path) -> None:
    new_project(tmp_path / "play", SETTINGS)
    change(tmp_path / "play", "# rounds = 120", "rounds = 7")
    change(tmp_path / "play", "# loss =", "loss =")
    training = Project.open(tmp_path / "play").settings.training
    assert (training.rounds, training.loss) == (7, Loss.CROSS_ENTROPY)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("# rounds = 120", 'rounds = "many"', r'\[training\] rounds is "many", but must be a whole number'),
        ("# rounds = 120", "round = 120", r"\[training\] round is no setting: did you mean rounds\?"),
        (
            "[federated] ",
            '[federated]\nstrategy = "fedprox" ',
            r"\[federated\] strategy is no setting: .* other strategies are for `adserver job submit --str",
        ),
        ("[model]", "[modell]", r"\[modell\] is no section: did you mean \[model\]\?"),
        ("# rounds = 120", "rounds 120", "is not valid TOML"),
        (
            "# rounds = 120",
            'rounds = "many"\nround = 1',
            r"\[training\] rounds is .*; \[training\] round is ",
        ),
        ("panel = 0.2", "panel = 0,2", r"is not valid TOML: .*: numbers have a point: 0\.2$"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, before: str, after: str, said: str) -> None:
    new_project(tmp_path / "play", SETTINGS)
    change(tmp_path / "play", before, after)
    with pytest.raises(InvalidTask, match=said):
        Project.open(tmp_path / "play")


def test_a_folder_without_settings_says_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match="adserver quickstart new"):
        Project.open(tmp_path)


def test_a_project_is_not_made_twice_nor_with_a_file_that_is_missing(tmp_path: Path) -> None:
    new_project(tmp_path / "play", SETTINGS)
    with pytest.raises(InvalidTask, match=r"exists already: .*; to make a project anew, name another folder"):
        new_project(tmp_path / "play", SETTINGS)
    missing = Settings(servers=SERVERS, model=ModelSettings(onnx="no.onnx"))
    with pytest.raises(InvalidTask, match=r"no\.onnx does not exist"):
        new_project(tmp_path / "other", missing)
    assert not (tmp_path / "other").exists()


def test_runs_are_counted_on_from_the_last(tmp_path: Path) -> None:
    project = new_project(tmp_path / "play", SETTINGS)
    assert [project.new_run().name for _ in range(2)] == ["1", "2"]
    (project.folder / "runs" / "1").rmdir()
    assert project.new_run().name == "3"


def test_the_command_makes_a_project_on_ports_of_its_own(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["quickstart", "new", str(tmp_path / "play")], catch_exceptions=False)
    assert made.exit_code == 0
    servers = Project.open(tmp_path / "play").settings.servers
    assert len({getattr(servers, each.name) for each in fields(servers)}) == 5
    environment = (tmp_path / "play" / "env.sh").read_text()
    assert f"export ADSERVER_HELPER_1={servers.helper_1}\n" in environment


def test_a_shell_reads_a_folder_of_any_name(tmp_path: Path) -> None:
    project = new_project(tmp_path / "it's $(here)", SETTINGS)
    script = '. "$0" && printf %s "$ADSERVER_DATA"'
    shown = subprocess.run(
        ["/bin/sh", "-c", script, project.environment_file], capture_output=True, check=True
    )
    assert shown.stdout.decode() == str(project.parties / "adserver")


def test_others_of_the_machine_see_no_results_of_a_run_and_no_counts_of_a_table(tmp_path: Path) -> None:
    """Comments of `lark.toml` say how many rows have each class."""
    project = new_project(tmp_path / "play", SETTINGS)
    for made in (project.new_run(), project.folder / CONFIG):
        assert made.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("progress", ["[]", "{}", '{"settings": 1}', "3", '["settings"]', "{"])
def test_a_run_whose_progress_makes_no_sense_is_not_gone_on_with(tmp_path: Path, progress: str) -> None:
    project = new_project(tmp_path / "play", SETTINGS)
    (project.new_run() / "progress.json").write_text(progress)
    assert Steps.open(project).folder.name == "2"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--csv", "visits.csv"], "--csv needs --label to train a model, or --value or --key to measure"),
        (["--label", "bought"], "--label names a column of a table: give --csv"),
        (["--csv", "visits.csv", "--key", "device", "--person", "who"], "train a model, which needs a label"),
        (["--csv", "visits.csv", "--key", "device", "--model", "visits.csv"], "which needs a label"),
    ],
)
def test_a_table_without_a_label_is_measured_or_refused(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("visits.csv").touch()
    made = CliRunner().invoke(app, ["quickstart", "new", "play", *options])
    assert made.exit_code == 2
    assert said in " ".join(made.output.replace("│", " ").split())
    assert not Path("play").exists()


def test_the_file_of_a_project_without_a_label_says_nothing_of_training(tmp_path: Path) -> None:
    (tmp_path / "visits.csv").touch()
    settings = Settings(
        servers=SERVERS,
        data=DataSettings(csv=str(tmp_path / "visits.csv"), publish=("shop",)),
        task=TaskSettings(min_batch_size=7, epsilon=2.5, collusion_epsilon=3.5),
        measure=MeasureSettings(values=(Measured(column="paid", most=3),), keys=("shop",), epsilon=0.25),
    )
    new_project(tmp_path / "play", settings)
    assert Project.open(tmp_path / "play").settings == settings
    said = tomllib.loads((tmp_path / "play" / CONFIG).read_text())
    assert said.keys() == {"data", "task", "measure", "servers"}


def test_the_sample_is_written_once(tmp_path: Path) -> None:
    table = tmp_path / "new" / "visits.csv"
    made, again = (CliRunner().invoke(app, ["quickstart", "sample", str(table)]) for _ in range(2))
    assert made.exit_code == 0
    assert "made-up visits of 400 people who do not exist" in made.output
    assert table.read_text() == sample_table()
    assert again.exit_code == 2
    assert "exists already" in again.output


def test_a_column_that_is_measured_and_left_out_has_the_reason_where_it_is_left_out(tmp_path: Path) -> None:
    values = (Measured(column="paid", most=160),)
    settings = replace(SETTINGS, data=DataSettings(ignore=("paid",)), measure=MeasureSettings(values=values))
    new_project(tmp_path / "play", settings, {"paid": "a leak"})
    lines = (tmp_path / "play" / CONFIG).read_text().splitlines()
    assert [line for line in lines if '"paid"' in line] == [
        '  "paid",  # a leak',
        '  {column = "paid", most = 160},',
    ]
