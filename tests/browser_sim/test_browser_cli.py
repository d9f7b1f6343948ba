import io
import json
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from browser_sim.cli import app
from browser_sim.devices.run import FleetSettings, Told
from browser_sim.run import Progress, RunSettings
from browser_sim.sources.table import TableSettings, fit_counting
from maskedlark import canonical
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.table import parse_table
from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.numbers.field import add
from tests.browser_sim.sinks import Intake, grpc_sink, http_sink
from tests.builders import World, world
from tests.patience import HANGS_S


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run(folder: Path, of: World, to: str, *arguments: object) -> dict[str, Any]:
    bundle = folder / "bundle.json"
    bundle.write_bytes(canonical.encode(of.bundle))
    result = invoke("run", "--task", bundle, "--to", to, "--insecure", "--json", *arguments)
    assert result.exit_code == 0, result.output
    summary: dict[str, Any] = json.loads(result.stdout)
    return summary


def opened(of: World, intake: Intake) -> list[tuple[bytes, int]]:
    """Features and labels of all real reports, by recombining both helpers' shares."""
    first, second = of.datasets(intake.order)
    masks = add(first.shares.mask_shares, second.shares.mask_shares)
    labels = (first.shares.labels * masks).sum(axis=1)
    rows = zip(first.shares.features, labels, masks.sum(axis=1), strict=True)
    return sorted((bytes(features), int(label)) for features, label, is_real in rows if is_real)


def pairs(path: Path) -> list[tuple[bytes, int]]:
    with np.load(path, allow_pickle=False) as saved:
        return sorted(
            (bytes(row), int(label)) for row, label in zip(saved["features"], saved["labels"], strict=True)
        )


@pytest.mark.parametrize("sink", [grpc_sink, http_sink])
def test_a_run_delivers_every_record_once_and_its_files_match(tmp_path: Path, sink: Any) -> None:
    ours = world(num_features=30, fake_report_rate=0.2)
    intake = Intake()
    panel, clear = tmp_path / "panel.npz", tmp_path / "clear.npz"
    with sink(intake) as address:
        summary = run(
            tmp_path, ours, address, "--source", "wbcd", "--seed", 5, "--holdout", panel, "--train-out", clear
        )
    assert summary["impressions"] == 455
    assert summary["panel"] == 114
    assert summary["conversions"] + summary["expired"] == 455
    assert summary["reports"] == summary["accepted"] == 455 + summary["fakes"] == len(intake.order)
    assert summary["fakes"] > 50
    assert opened(ours, intake) == pairs(clear)
    assert len(pairs(panel)) == 114
    assert not set(pairs(panel)) & set(pairs(clear))


def test_a_seed_of_the_panel_replays_the_panel_and_no_report(tmp_path: Path) -> None:
    ours, intake, panels = world(num_features=30), Intake(), []
    with grpc_sink(intake) as address:
        for seed in (1, 1, 2):
            panel = tmp_path / "panel.npz"
            arguments = ("--source", "wbcd", "--limit", 20, "--holdout", panel, "--holdout-seed", seed)
            assert run(tmp_path, ours, address, *arguments)["duplicates"] == 0
            panels.append(pairs(panel))
    assert panels[0] == panels[1] != panels[2]


def test_a_run_with_the_same_seed_is_all_duplicates(tmp_path: Path) -> None:
    ours = world(num_features=30)
    with grpc_sink(Intake()) as address:
        first, second = (
            run(tmp_path, ours, address, "--source", "wbcd", "--seed", 5, "--limit", 40) for _ in range(2)
        )
        third = run(tmp_path, ours, address, "--source", "wbcd", "--seed", 6, "--limit", 40)
    assert (first["accepted"], second["accepted"], second["duplicates"], third["accepted"]) == (40, 0, 40, 40)


def test_runs_without_a_seed_never_repeat(tmp_path: Path) -> None:
    ours = world(num_features=30)
    with grpc_sink(Intake()) as address:
        runs = [run(tmp_path, ours, address, "--source", "wbcd", "--limit", 40) for _ in range(2)]
    assert [(one["accepted"], one["seed"]) for one in runs] == [(40, None)] * 2


def test_people_times_impressions_choose_the_number_of_records(tmp_path: Path) -> None:
    ours = world(num_features=6)
    options = (
        "--source",
        "synthetic",
        "--synthetic-features",
        6,
        "--synthetic-rows",
        50,
        "--seed",
        1,
        "--impressions-per-person",
        3,
    )
    with grpc_sink(Intake()) as address:
        summary = run(tmp_path, ours, address, *options, "--people", 10)
        assert (summary["people"], summary["impressions"], summary["reports"]) == (10, 30, 30)
        everything = run(tmp_path, ours, address, *options)
        assert (everything["people"], everything["impressions"]) == (17, 50)
        result = invoke(
            "run", "--task", tmp_path / "bundle.json", "--to", address, "--insecure", *options, "--people", 17
        )
    assert result.exit_code == 1
    assert "each used once" in result.stderr


def test_without_consent_nothing_is_uploaded(tmp_path: Path) -> None:
    intake = Intake()
    with grpc_sink(intake) as address:
        summary = run(
            tmp_path,
            world(num_features=30),
            address,
            "--source",
            "wbcd",
            "--consent-rate",
            0,
            "--fake-rate",
            0.5,
        )
    assert (summary["no_consent"], summary["reports"], intake.order) == (569, 0, [])


def test_the_options_fake_rate_overrides_the_tasks(tmp_path: Path) -> None:
    ours = world(num_features=30, fake_report_rate=0.5)
    with grpc_sink(Intake()) as address:
        assert run(tmp_path, ours, address, "--source", "wbcd", "--limit", 60, "--fake-rate", 0)["fakes"] == 0


def test_a_csv_of_words_and_classes_is_reported(tmp_path: Path) -> None:
    ours = world(num_features=2, labels={"kind": "classes", "size": 3})
    path = tmp_path / "table.csv"
    path.write_text("a,b,y\n" + "".join(f"{n % 20},{'xyz'[n % 3]},{'uvw'[n % 3]}\n" for n in range(30)))
    intake = Intake()
    with grpc_sink(intake) as address:
        summary = run(tmp_path, ours, address, "--source", "csv", "--csv", path, "--label", "y", "--bins", 10)
    assert (summary["conversions"], summary["expired"]) == (30, 0)
    assert sorted(label for _, label in opened(ours, intake)) == [0] * 10 + [1] * 10 + [2] * 10


def test_the_browser_of_each_person_of_a_table_keeps_to_the_tasks_cap(tmp_path: Path) -> None:
    ours, intake = world(num_features=1, unit="user", reports_per_user=2), Intake()
    table = tmp_path / "visits.csv"
    table.write_text("who,pages,y\n" + "".join(f"u{row % 7},{row % 20},{row % 2}\n" for row in range(30)))
    options = ("--source", "csv", "--csv", table, "--label", "y", "--user", "who")
    with grpc_sink(intake) as address:
        summary = run(tmp_path, ours, address, *options)
    assert (summary["people"], summary["accepted"], summary["over_cap"]) == (7, 14, 16)
    assert summary["read"] == 30


def test_with_an_encoder_without_a_label_a_table_is_reported_to_be_measured_alone(tmp_path: Path) -> None:
    table = tmp_path / "visits.csv"
    table.write_text(
        "pages,device,paid\n" + "".join(f"{row % 20},{'ab'[row % 2]},{row % 9}\n" for row in range(30))
    )
    fitted = tmp_path / "encoder.json"
    assert invoke("encode", "--fit", table, "--value", "paid", "-o", fitted).exit_code == 0
    measurement = {"min_cell_count": 2, "values": [{"name": "paid", "low": 0, "high": 9}]}
    encoder = canonical.decode(Encoder, fitted.read_bytes())
    ours = world(
        num_features=2,
        encoder=encoder.digest,
        measurement=measurement,
        labels={"kind": "classes", "size": 2, "default_label": 0},
    )
    intake = Intake()
    with grpc_sink(intake) as address:
        options = ("--source", "csv", "--csv", table, "--encoder", fitted, "--value", "paid")
        summary = run(tmp_path, ours, address, *options)
    assert (summary["read"], summary["accepted"], summary["left_out"]) == (30, 30, {})
    cells = parse_table(table.read_bytes(), "visits.csv").columns
    assert opened(ours, intake) == sorted((bytes(row), 0) for row in encoder.features(cells))


def test_real_valued_labels_are_reported_as_quantised_values(tmp_path: Path) -> None:
    ours = world(num_features=1, labels={"kind": "values", "size": 101, "num_buckets": 4})
    path = tmp_path / "table.csv"
    path.write_text("a,y\n" + "".join(f"{n % 100},{n / 2}\n" for n in range(200)))
    intake = Intake()
    with grpc_sink(intake) as address:
        run(
            tmp_path,
            ours,
            address,
            "--source",
            "csv",
            "--csv",
            path,
            "--label",
            "y",
            "--label-kind",
            "values",
            "--seed",
            2,
        )
    values = [label for _, label in opened(ours, intake)]
    assert set(values) == {0, 25, 50, 75, 100}
    assert abs(np.mean(values) - 49.75) < 4


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--source", "wbcd", "--start-unix-s", "0"], "within the task's period"),
        (["--source", "synthetic", "--synthetic-features", "7"], "takes 30"),
        (["--source", "wbcd", "--fake-rate", "1"], "fake_rate"),
        (["--source", "csv", "--csv", "/nowhere.csv", "--label", "y"], "cannot read"),
        (["--source", "wbcd", "--trust-helper", "00" * 32], "is not trusted"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_one_line_and_nothing_is_sent(
    tmp_path: Path, arguments: list[str], why: str
) -> None:
    bundle = tmp_path / "bundle.json"
    bundle.write_bytes(canonical.encode(world(num_features=30).bundle))
    intake = Intake()
    with grpc_sink(intake) as address:
        result = invoke("run", "--task", bundle, "--to", address, "--insecure", *arguments)
    assert result.exit_code == 1
    assert why in result.stderr
    assert not intake.order


def test_records_in_clear_are_not_written_beside_a_far_ad_server(tmp_path: Path) -> None:
    result = invoke(
        "run",
        "--task",
        "x",
        "--to",
        "https://ads.example",
        "--source",
        "wbcd",
        "--train-out",
        tmp_path / "clear.npz",
    )
    assert result.exit_code == 1
    assert "ad server on loopback" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--source", "csv"],
        ["--source", "wbcd", "--tls-cert", "x.pem"],
        ["--source", "wbcd", "--trust-helper", "xyz"],
        ["--source", "wbcd", "--trust-helper", "00"],
        ["--source", "wbcd", "--holdout-fraction", "0.5"],
        ["--source", "wbcd", "--holdout-seed", "1"],
        ["--source", "wbcd", "--consent-rate", "2"],
        ["--source", "csv", "--csv", "x.csv", "--user", "who", "--people", "3"],
        ["--source", "csv", "--csv", "x.csv", "--user", "who", "--impressions-per-person", "2"],
    ],
)
def test_options_that_make_no_sense_together_are_usage_errors(arguments: list[str]) -> None:
    assert invoke("run", "--task", "x", "--to", "127.0.0.1:1", *arguments).exit_code == 2


def test_a_seed_is_warned_of_and_no_seed_is_not(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.json"
    bundle.write_bytes(canonical.encode(world(num_features=30).bundle))
    with grpc_sink(Intake()) as address:
        for seed, is_warned in ((["--seed", "1"], True), ([], False)):
            result = invoke(
                "run",
                "--task",
                bundle,
                "--to",
                address,
                "--insecure",
                "--source",
                "wbcd",
                "--limit",
                "5",
                *seed,
            )
            assert result.exit_code == 0
            assert ("WARNING" in result.stderr) is is_warned
            assert "accepted" in result.stdout


def test_a_terminal_shows_progress_from_the_beginning_and_then_the_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = io.StringIO()
    terminal = Console(file=said, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    shown = []

    def living(_settings: RunSettings, progress: Progress, **_: object) -> NoReturn:
        until = time.monotonic() + HANGS_S
        while "people see ads" not in said.getvalue() and time.monotonic() < until:
            Event().wait(0.02)  # until it is drawn
        shown.append(said.getvalue())
        with progress(7) as answered:
            answered(4)
        raise InvalidTask("far enough")

    monkeypatch.setattr("browser_sim.run.run", living)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert (
        invoke("run", "--task", "x", "--to", "127.0.0.1:1", "--insecure", "--source", "wbcd").exit_code == 1
    )
    assert "people see ads" in shown[0]
    assert "reports" not in shown[0]
    assert "4/7" in said.getvalue()


def devices(folder: Path, *arguments: object) -> Result:
    table = folder / "visits.csv"
    table.write_text("who,pages,bought\na,1,0\nb,2,1\n")
    holding = ("--holding", "csv", "--csv", table, "--label", "bought", "--user", "who")
    reached = ("--site", "http://127.0.0.1:1", "--store", folder / "x", "--insecure")
    return invoke("devices", *reached, *holding, *arguments)


@pytest.mark.parametrize("waits", [[], ["--wait"]])
def test_devices_ask_an_ad_server_again_that_is_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[str]
) -> None:
    answers = [HelperUnavailable("starting"), InvalidTask("far enough")]

    def bundle(*_: object, **__: object) -> NoReturn:
        raise answers.pop(0)

    monkeypatch.setattr("browser_sim.task_host.load_bundle", bundle)
    done = devices(tmp_path, "--task", "00", *waits)
    assert (done.exit_code, answers) == (1, [])
    assert "waiting: starting" in done.stderr
    assert "far enough" in done.stderr


def test_devices_of_a_job_without_helpers_wait_for_no_task(tmp_path: Path) -> None:
    done = devices(tmp_path, "--local-job", "00", "--wait")
    assert done.exit_code == 2
    assert "--wait requires --task" in done.stderr


@pytest.mark.parametrize("given", ["none", "the same", "another"])
def test_devices_read_their_rows_with_the_tasks_encoder(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "visits.csv"
    table.write_text("who,pages,bought\na,100,0\nb,300,1\n")
    encoder = fit_counting(TableSettings(path=table, label="bought", ignore=("who",))).encoder
    other = fit_counting(TableSettings(path=table, label="bought")).encoder
    (tmp_path / "given.json").write_bytes(canonical.encode(other if given == "another" else encoder))
    bundle = world(num_features=1, encoder=encoder.digest).bundle
    ran: list[FleetSettings] = []

    def run(settings: FleetSettings, *_: object) -> Told:
        ran.append(settings)
        return Told()

    monkeypatch.setattr("browser_sim.task_host.load_bundle", lambda *_, **__: bundle)
    monkeypatch.setattr("browser_sim.devices.run.run_devices", run)
    options = () if given == "none" else ("--encoder", tmp_path / "given.json")
    with http_sink(files={"/v1/tasks/00/encoder": canonical.encode(encoder)}) as url:
        done = devices(tmp_path, "--task", "00", "--site", url, *options)
    if given == "another":
        assert done.exit_code == 1
        assert "but the task requires" in done.stderr
        return
    assert done.exit_code == 0, done.output
    # Of this device's own table, in which pages are 1 and 2, the task's encoder sees the lowest bin only.
    assert ran[0].holdings.features.tolist() == [[0], [0]]


def test_a_bug_shows_no_local_variable() -> None:
    assert not app.pretty_exceptions_enable


def test_describe_gives_shape_balance_and_scaling() -> None:
    described = json.loads(invoke("describe", "--source", "wbcd", "--json").stdout)
    assert (described["records"], described["features"], described["labels"]) == (
        569,
        30,
        {"benign": 357, "malignant": 212},
    )
    assert "percentile" in described["scaling"]
    shown = invoke("describe", "--source", "wbcd").stdout
    assert "malignant" in shown
    # In the order in which a model gets them; a terminal wraps the line
    assert described["feature_names"][-1] in " ".join(shown.replace("│", " ").split())


def test_download_refuses_a_mirror_that_lies(tmp_path: Path) -> None:
    with http_sink(files={"/train-images-idx3-ubyte.gz": b"lies"}) as url:
        result = invoke("download", "mnist", "--to", tmp_path, "--mirror", url)
    assert result.exit_code == 1
    assert "SHA-256" in result.stderr


def test_a_run_loads_nothing_that_draws_and_no_client_that_it_does_not_use() -> None:
    code = "import sys, browser_sim.commands, browser_sim.run; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert "grpc" in loaded
    assert loaded & {"rich", "pygments", "httpx", "sqlalchemy", "torch", "onnx"} == set()


def test_the_help_of_a_time_is_in_the_unit_of_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    lines = invoke("run", "--help").output.splitlines()
    times = {unit: [line for line in lines if f"-{unit} " in line] for unit in ("days", "hours")}
    assert {unit: len(found) for unit, found in times.items()} == {"days": 1, "hours": 2}
    for unit, found in times.items():
        assert all(unit in line.lower().replace(f"-{unit} ", "") and "second" not in line for line in found)
