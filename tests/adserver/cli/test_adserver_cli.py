"""The commands, as a person types them: against two fake helpers over gRPC, and a real server process."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import adserver.client.local
from adserver.cli.main import app, main
from adserver.collecting.task_settings import NO_LABELS
from adserver.peers import retrying
from adserver.peers.client import HelperClient
from adserver.peers.retrying import ONCE
from adserver.records.summaries import HelperSummary
from adserver.store.database import default_url
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.canonical import decode, encode
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import HelperUnavailable, InvalidSetting, InvalidTask, JobReason, JobRefused
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.randomness import seeded
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.upload import Report, Sealer
from maskedlark.rpc.wire import encode_report
from maskedlark.runtime.database import open_database
from maskedlark.terminal.exit_status import REFUSED, UNAVAILABLE
from tests import builders
from tests.adserver.fake_helper import FakeHelper, serving, unavailable
from tests.patience import HANGS_S

_TASK = (
    "--name",
    "clicks",
    "--origin",
    "https://ads.example",
    "--num-features",
    "4",
    "--min-batch-size",
    "2",
    "--clip-norm",
    "1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Runs commands with one data folder and two fake helpers."""

    data: Path
    fakes: tuple[FakeHelper, FakeHelper]
    environment: dict[str, str]

    def run(self, *arguments: str) -> str:
        """Standard output; a refusal is raised."""
        result = CliRunner().invoke(app, list(arguments), env=self.environment, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def usage_error(self, *arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments), env=self.environment)
        assert result.exit_code == 2
        return result.output

    def create(self, *more: str) -> TaskBundle:
        out = self.data / "task.bin"
        self.run(
            "task",
            "create",
            *_TASK,
            "--epsilon",
            "2",
            "--classes",
            "2",
            "--default-label",
            "0",
            "--out",
            str(out),
            *more,
        )
        return decode(TaskBundle, out.read_bytes())


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    fakes = FakeHelper(role=0), FakeHelper(role=1)
    with serving(*fakes) as (first, second):
        environment = {
            "ADSERVER_DATA": str(tmp_path / "data"),
            "ADSERVER_HELPER_0": first.address,
            "ADSERVER_HELPER_1": second.address,
            "ADSERVER_INSECURE": "1",
            "COLUMNS": "200",
        }
        (tmp_path / "data").mkdir()
        yield Shell(data=tmp_path / "data", fakes=fakes, environment=environment)


def _reports(bundle: TaskBundle, count: int) -> list[Report]:
    sealer, randomness = Sealer(bundle, now=time.time()), seeded(5)
    return [
        sealer.report(example, unix_s=time.time(), randomness=randomness)
        for example in builders.examples(bundle.task, count, randomness)
    ]


def test_a_task_is_created_written_for_browsers_and_shown(shell: Shell) -> None:
    bundle = shell.create()
    bundle.verify()
    task = bundle.task
    assert (task.num_decoys, task.mechanism, task.epsilon, task.collusion_epsilon) == (
        1,
        Mechanism.GAUSSIAN,
        2.0,
        4.0,
    )
    assert task.starts_at <= time.time() < task.expires_at == task.starts_at + 30 * 86_400
    shown = shell.json("task", "show", task.task_id.hex()[:6])
    assert shown["task_id"] == task.task_id.hex()
    assert shown["reports"] == {"waiting": 0, "sealed": 0, "dropped": 0, "expired": 0}
    assert shown["task"]["helpers"][1]["name"] == "helper 1"
    assert task.task_id.hex() in shell.run("task", "show")
    assert [row["task_id"] for row in shell.json("task", "list")] == [task.task_id.hex()]
    assert "clicks" in shell.run("task", "list")


def test_every_setting_of_a_task_has_its_option(shell: Shell) -> None:
    bundle = shell.create(
        *(
            "--mechanism",
            "laplace",
            "--collusion-epsilon",
            "9",
            "--delta",
            "1e-6",
            "--feature-epsilon",
            "3",
            "--fake-report-rate",
            "0.25",
        ),
        *(
            "--frac-bits",
            "30",
            "--max-dataset-size",
            "500",
            "--time-bucket-s",
            "60",
            "--starts-at",
            "600",
            "--expires-at",
            "1200",
        ),
        *("--decoys", "1"),
    )
    task = bundle.task
    assert (task.mechanism, task.norm, task.collusion_epsilon, task.delta, task.feature_epsilon) == (
        "laplace",
        "l1",
        9.0,
        1e-6,
        3.0,
    )
    assert (task.fake_report_rate, task.frac_bits, task.max_dataset_size, task.time_bucket_s) == (
        0.25,
        30,
        500,
        60,
    )
    assert (task.starts_at, task.expires_at) == (600, 1200)


def encoder_file(shell: Shell) -> tuple[Path, Encoder]:
    """An encoder of three columns and three classes."""
    columns: dict[str, list[str | None]] = {
        "age": ["20", "30", "40"],
        "work": ["a", "b", None],
        "gain": ["0", "1", "5"],
        "y": ["low", "mid", "top"],
    }
    fitted = fit(columns, FitSettings(label="y"))
    path = shell.data.parent / "encoder.json"
    path.write_bytes(encode(fitted))
    return path, fitted


def test_a_task_takes_width_and_classes_from_its_encoder_and_serves_it(shell: Shell) -> None:
    path, fitted = encoder_file(shell)
    out = shell.data.parent / "bundle.json"
    shell.run(
        *("task", "create", "--name", "clicks", "--origin", "https://ads.example", "--epsilon", "2"),
        *("--min-batch-size", "2", "--clip-norm", "1", "--encoder", str(path), "--out", str(out)),
    )
    task = decode(TaskBundle, out.read_bytes()).task
    assert (task.num_features, task.labels.size, task.encoder) == (3, 3, fitted.digest)
    store = TaskStore(open_database(default_url(shell.data)))
    assert store.encoder(task.task_id) == fitted


def test_an_encoder_that_does_not_fit_the_other_settings_makes_no_task(shell: Shell) -> None:
    path, _ = encoder_file(shell)
    for options, why in (
        (("--num-features", "4"), "--num-features is 4, but the encoder makes 3"),
        (("--classes", "2"), "3 classes"),
        (("--max-value", "9"), "3 classes"),
    ):
        with pytest.raises(InvalidTask, match=why):
            shell.run(
                *("task", "create", "--name", "x", "--origin", "https://ads.example", "--epsilon", "2"),
                *("--min-batch-size", "2", "--clip-norm", "1", "--encoder", str(path), *options),
            )
    with pytest.raises(InvalidTask, match="--num-features, or --encoder"):
        shell.run(
            *("task", "create", "--name", "x", "--origin", "https://ads.example", "--epsilon", "2"),
            *("--min-batch-size", "2", "--clip-norm", "1", "--classes", "2"),
        )


def test_a_task_that_measures_needs_no_clip_bound_and_another_does(shell: Shell, tmp_path: Path) -> None:
    measured = tmp_path / "measurement.json"
    measured.write_text('{"min_cell_count": 20}')
    asked = ["task", "create", "--name", "x", "--origin", "https://ads.example", "--epsilon", "2"]
    asked += ["--min-batch-size", "2", "--num-features", "4", "--classes", "2"]
    with pytest.raises(InvalidTask, match="clip_norm is not given: expected the largest norm"):
        shell.run(*asked)
    out = tmp_path / "bundle"
    asked += ["--measurement", str(measured), "--out", str(out)]
    made = CliRunner().invoke(app, asked, env=shell.environment, catch_exceptions=False)
    assert "note: --clip-norm is 1: the largest bound of jobs" in made.stderr
    assert decode(TaskBundle, out.read_bytes()).task.clip_norm == 1


def test_with_an_encoder_without_a_label_a_task_measures_alone_or_is_not_made(
    shell: Shell, tmp_path: Path
) -> None:
    fitted = fit({"age": ["20", "30"], "work": ["a", "b"]}, FitSettings())
    (tmp_path / "encoder.json").write_bytes(encode(fitted))
    (tmp_path / "measurement.json").write_text('{"min_cell_count": 20}')
    measured = ("--measurement", str(tmp_path / "measurement.json"))
    asked = (
        *("task", "create", "--name", "x", "--origin", "https://ads.example", "--epsilon", "2"),
        *("--min-batch-size", "2", "--clip-norm", "1", "--encoder", str(tmp_path / "encoder.json")),
    )
    with pytest.raises(InvalidTask, match="no labels and no measurement: fit the encoder with --label"):
        shell.run(*asked)
    assert shell.json("task", "list") == []
    shell.run(*asked, *measured, "--out", str(tmp_path / "bundle"))
    task = decode(TaskBundle, (tmp_path / "bundle").read_bytes()).task
    assert (task.num_features, task.labels, task.encoder) == (2, NO_LABELS, fitted.digest)
    made = CliRunner().invoke(
        app, [*asked, *measured, "--classes", "2"], env=shell.environment, catch_exceptions=False
    )
    assert "note: the encoder was fitted without a label, so only pages" in made.stderr


def test_no_noise_is_mechanism_none(shell: Shell) -> None:
    assert shell.create("--no-noise").task.mechanism is Mechanism.NONE


def test_a_wrong_setting_makes_no_task(shell: Shell) -> None:
    with pytest.raises(InvalidTask, match="exactly one"):
        shell.run("task", "create", *_TASK, "--epsilon", "2")
    assert shell.json("task", "list") == []


def test_reports_are_sealed_and_listed_with_counts(shell: Shell) -> None:
    bundle = shell.create()
    ReportStore(open_database(default_url(shell.data))).add(_reports(bundle, 9))
    sealed = shell.json("dataset", "seal", "--max-reports", "6")
    assert (sealed["received"], sealed["admitted"], sealed["dropped"], sealed["state"]) == (
        6,
        6,
        [{}, {}],
        "committed",
    )
    assert shell.fakes[0].committed == shell.fakes[1].committed
    printed = shell.run("dataset", "seal", "--task", bundle.task.task_id.hex())
    assert "admitted by both helpers" in printed
    assert [row["received"] for row in shell.json("dataset", "list")] == [6, 3]
    (name,) = {row["name"] for row in shell.json("task", "list")}
    listed = shell.run("dataset", "list").splitlines()
    assert any(sealed["dataset_id"][:12] in row and name in row for row in listed)
    assert shell.json("task", "show")["reports"] == {"waiting": 0, "sealed": 9, "dropped": 0, "expired": 0}


def test_a_dataset_that_is_stuck_can_be_given_up_and_a_committed_one_not(shell: Shell) -> None:
    bundle = shell.create()
    ReportStore(open_database(default_url(shell.data))).add(_reports(bundle, 5))
    shell.fakes[1].commit_failures.append(InvalidTask("no"))
    with pytest.raises(InvalidTask):
        shell.run("dataset", "seal")
    stuck = shell.json("dataset", "list")[0]
    assert stuck["state"] == "committing"
    assert "5 reports wait to be sealed again" in shell.run("dataset", "abandon", stuck["dataset_id"])
    shell.fakes[0].committed.clear()
    sealed = shell.json("dataset", "seal")
    with pytest.raises(JobRefused, match="cannot be abandoned"):
        shell.run("dataset", "abandon", sealed["dataset_id"])


def test_keys_that_are_the_present_ones_are_said_to_be(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.create()
    for changed, said in ((0, "nothing to refresh: every task has the present keys"), (1, "of 1 task")):
        monkeypatch.setattr(
            adserver.client.local.LocalAdServer, "refresh_keys", lambda _, changed=changed: changed
        )
        assert said in shell.run("task", "refresh-keys")


def test_a_file_in_place_of_the_data_folder_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for command in (["task", "list"], ["keygen", "--origin", "https://ads.example"]):
        with pytest.raises(InvalidSetting, match="is not a folder"):
            CliRunner().invoke(app, [*command, "--data", str(path)], catch_exceptions=False)


def test_an_encoder_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "encoder.json"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(
        InvalidTask, match=r"encoder\.json is no encoder: give a file that `browser-sim encode"
    ):
        CliRunner().invoke(
            app, ["model", "create", str(tmp_path / "m.onnx"), "--encoder", str(path)], catch_exceptions=False
        )


def test_plaintext_has_to_be_asked_for_by_name(shell: Shell) -> None:
    shell.environment["ADSERVER_INSECURE"] = "0"
    assert "--insecure" in shell.usage_error("dataset", "seal")
    assert "--insecure" in shell.usage_error("dataset", "seal", "--insecure", "--tls-ca", __file__)


def test_a_key_is_made_once_for_the_origin_that_tasks_name(shell: Shell) -> None:
    shell.run("keygen", "--origin", "https://ads.example", "--host", "localhost")
    key = shell.data / "tls.key"
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    assert "keeping it" in shell.usage_error("keygen", "--origin", "https://ads.example")
    for origin in ("ads.example", "https://ads.example/", "https://victim.example\\@rival.example"):
        assert "no default port" in shell.usage_error("keygen", "--origin", origin)
    assert key.read_bytes() == before


def test_a_refusal_is_one_line_and_an_exit_status(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.create()
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retrying, "BRIEF", ONCE)
    monkeypatch.setattr(sys, "argv", ["adserver", "dataset", "seal"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == REFUSED
    assert (
        capsys.readouterr().err
        == "JobRefused (dataset_empty): no report of this task is waiting to be sealed\n"
    )


def test_a_helper_that_is_down_is_told_apart_by_the_exit_status(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = shell.create()
    ReportStore(open_database(default_url(shell.data))).add(_reports(bundle, 5))
    shell.fakes[0].commit_failures.append(unavailable())
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retrying, "BRIEF", ONCE)
    monkeypatch.setattr(sys, "argv", ["adserver", "dataset", "seal"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == UNAVAILABLE
    assert "HelperUnavailable" in capsys.readouterr().err


@contextmanager
def _server(shell: Shell) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server process and the address of its HTTP intake."""
    addresses = shell.data / "addresses.json"
    addresses.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-c",
        "from adserver.cli.main import main; main()",
        "serve",
        "--addresses-file",
        str(addresses),
    ]
    process = subprocess.Popen(command, env={**os.environ, **shell.environment}, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + HANGS_S
        while not addresses.exists():
            assert process.poll() is None, process.communicate()[1].decode()
            assert time.monotonic() < deadline
            time.sleep(0.02)  # another process: there is nothing to wait on but its file
        yield process, json.loads(addresses.read_text())["http"]
    finally:
        process.kill()
        process.communicate()


def test_a_server_that_crashes_leaves_no_core_file_with_its_tls_key(shell: Shell) -> None:
    allowed = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (allowed[1], allowed[1]))  # what the server inherits
    try:
        with _server(shell) as (process, _):
            limits = Path(f"/proc/{process.pid}/limits").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (allowed[0], allowed[1]))
    assert next(line for line in limits.splitlines() if "core file" in line).split()[4:6] == ["0", "0"]


def test_a_server_says_where_it_listens_takes_reports_and_drains_on_sigterm(shell: Shell) -> None:
    bundle = shell.create()
    first, second = (encode_report(report) for report in _reports(bundle, 2))
    with _server(shell) as (process, http):
        assert httpx.post(f"http://{http}/v1/reports", content=first, timeout=HANGS_S).status_code == 201
        assert (
            httpx.get(f"http://{http}/v1/tasks/{bundle.task.task_id.hex()}", timeout=HANGS_S).content
            == (shell.data / "task.bin").read_bytes()
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS_S) == 0
        assert b"1 accepted" in (process.stderr.read() if process.stderr else b"")
    with _server(shell) as (process, http):
        assert [
            httpx.post(f"http://{http}/v1/reports", content=body, timeout=HANGS_S).status_code
            for body in (first, second)
        ] == [200, 201]
        process.send_signal(signal.SIGKILL)
    with _server(shell) as (_, http):
        assert [
            httpx.post(f"http://{http}/v1/reports", content=body, timeout=HANGS_S).status_code
            for body in (first, second)
        ] == [200, 200]


def test_status_says_below_its_table_why_a_helper_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    helpers = ["--helper-0", "127.0.0.1:1", "--helper-1", "127.0.0.1:2", "--insecure"]
    shown = CliRunner().invoke(app, ["status", "--data", str(tmp_path), *helpers])
    assert shown.output.splitlines()[-2:] == [
        f"helper at 127.0.0.1:{port}: no server is listening there" for port in (1, 2)
    ]
    assert shown.exit_code == UNAVAILABLE
    # Another number than the numerics of a statement and of the audit log, under another name
    assert "software" in shown.output
    assert "numerics" not in shown.output


@pytest.mark.parametrize("command", ["serve", "status"])
def test_one_helper_at_both_addresses_is_refused(command: str, tmp_path: Path) -> None:
    helpers = ["--helper-0", "127.0.0.1:1", "--helper-1", "127.0.0.1:1", "--insecure"]
    shown = CliRunner().invoke(app, [command, "--data", str(tmp_path), *helpers], env={"COLUMNS": "200"})
    assert (shown.exit_code, "both 127.0.0.1:1" in shown.output) == (2, True)


def test_one_helper_at_two_addresses_is_named_as_one_when_a_task_is_made(shell: Shell) -> None:
    shell.fakes[1].keys = shell.fakes[0].keys
    first, second = (shell.environment[f"ADSERVER_HELPER_{role}"] for role in (0, 1))
    with pytest.raises(InvalidTask, match=f"{first} and {second} are one helper, 'helper 0' with"):
        shell.create()


@pytest.mark.parametrize(("not_well", "status"), [("", 0), ("helper at 127.0.0.1:2 is not well: full", 75)])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_status_ends_with_75_unless_both_helpers_are_well(
    not_well: str, status: int, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sight(role: int, helper: HelperClient) -> HelperSummary:
        cause = not_well if role else ""
        return HelperSummary(role=role, address=helper.address, is_well=not cause, cause=cause)

    monkeypatch.setattr(adserver.client.local, "_look_at", sight)
    helpers = ["--helper-0", "127.0.0.1:1", "--helper-1", "127.0.0.1:2", "--insecure"]
    shown = CliRunner().invoke(app, ["status", "--data", str(tmp_path), *helpers, *options])
    assert shown.exit_code == status
    assert not_well in shown.output


def test_status_shows_both_helpers_where_one_refuses_this_ad_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(helper: HelperClient) -> None:
        away = HelperUnavailable(f"helper at {helper.address}: no longer trusted")
        raise away if helper.address.endswith("1") else JobRefused(JobReason.UNAUTHORIZED, "not yours")

    monkeypatch.setattr(HelperClient, "status", status)
    helpers = ["--helper-0", "127.0.0.1:1", "--helper-1", "127.0.0.1:2", "--insecure"]
    shown = CliRunner().invoke(app, ["status", "--data", str(tmp_path), *helpers])
    assert shown.exit_code == UNAVAILABLE
    assert "helper at 127.0.0.1:1: no longer trusted\nnot yours" in shown.output
