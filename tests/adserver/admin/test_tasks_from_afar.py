"""Tasks are made over the API, by `Client` and the command elsewhere, as they are made beside the server."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from typer.testing import CliRunner

from adserver.admin.guarded_route import PREFIX
from adserver.cli.main import app
from adserver.client import Client, api_session
from adserver.client.local import LocalAdServer
from adserver.ingest.http_server import HttpServer
from adserver.peers.retrying import ONCE
from adserver.records.access import GrantKind, Scope
from adserver.store.tasks import StoredTask, TaskStore
from maskedlark.canonical import decode, encode
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.reports.task import TaskBundle
from tests.adserver.asked_site import AT_ONCE, losing_answers
from tests.adserver.fake_helper import FakeHelper, serving
from tests.adserver.painted import Painted
from tests.measured import SHOP
from tests.patience import HANGS_S

SALT: Final = "5a" * 16
BODY: Final[dict[str, Any]] = {
    "name": "clicks", "origin": "https://ads.example", "min_batch_size": 2, "clip_norm": 1.0, "epsilon": 2.0,
    "num_features": 4, "labels": {"kind": "classes", "size": 2, "default_label": 0},
}  # fmt: skip
WITHOUT_LABELS: Final = {name: value for name, value in BODY.items() if name != "labels"}
COMMAND: Final = (
    "task", "create", "--name", "clicks", "--origin", "https://ads.example", "--min-batch-size", "2",
    "--clip-norm", "1", "--epsilon", "2", "--starts-at", "600", "--expires-at", "1200",
)  # fmt: skip
SETTINGS: Final = {
    "plain": ("--num-features", "4", "--classes", "2", "--default-label", "0"),
    "values": ("--num-features", "4", "--max-value", "90", "--num-buckets", "9", "--decoys", "3"),
    "every setting": (
        *("--num-features", "4", "--classes", "3", "--mechanism", "laplace", "--collusion-epsilon", "9"),
        *("--delta", "1e-6", "--feature-epsilon", "3", "--fake-report-rate", "0.25", "--frac-bits", "30"),
        *("--max-dataset-size", "500", "--time-bucket-s", "60", "--decoys", "1", "--no-proof"),
        *("--unit", "user", "--reports-per-user", "3"),
    ),
    "updates": (
        *("--num-features", "4", "--classes", "2", "--updates", "50", "--cover", "0.5"),
        *("--with-weight", "--split-noise"),
    ),
    "no noise": ("--num-features", "4", "--classes", "2", "--no-noise"),
}


@dataclass(frozen=True, kw_only=True)
class There:
    """An ad server whose helpers sign what fits their floors."""

    of: Painted
    url: str
    helpers: tuple[FakeHelper, FakeHelper]
    here: tuple[str, ...]

    def token(self, scope: Scope = Scope.TASKS) -> str:
        return self.of.grant(GrantKind.TOKEN, scope)

    def post(self, body: Any, scope: Scope = Scope.TASKS) -> httpx.Response:
        shown = {"authorization": f"Bearer {self.token(scope)}"}
        sent = body if isinstance(body, str | bytes) else json.dumps(body)
        return httpx.post(f"{self.url}{PREFIX}/tasks", content=sent, headers=shown, timeout=HANGS_S)

    def client(self, scope: Scope = Scope.TASKS) -> Client:
        return Client(url=self.url, token=self.token(scope), backoff=AT_ONCE)

    def run(self, *command: str, is_here: bool = False) -> str:
        place = self.here if is_here else ("--url", self.url, "--token", self.token())
        done = CliRunner().invoke(app, [*command, *place], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def stored(self, task: str) -> StoredTask:
        return TaskStore(self.of.engine).find(task)

    def tasks(self) -> int:
        return len(TaskStore(self.of.engine).all())


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    fakes = FakeHelper(role=0), FakeHelper(role=1)
    with ExitStack() as stack:
        first, second = stack.enter_context(serving(*fakes))
        of = Painted(Path(tmp_path_factory.mktemp("tasks")) / "adserver")
        stack.callback(of.close)
        of.client = Client.of(LocalAdServer.over(of.engine, (first, second), data=of.folder))
        server = HttpServer(stack.enter_context(of.door()), "127.0.0.1:0", None, headers=())
        stack.callback(server.stop)
        server.wait_until_started()
        here = (*("--data", str(of.folder), "--helper-0", first.address), *("--helper-1", second.address))
        url = f"http://127.0.0.1:{server.port}"
        yield There(of=of, url=url, helpers=fakes, here=(*here, "--insecure"))


@pytest.fixture(scope="module")
def fitted() -> Encoder:
    columns: dict[str, list[str | None]] = {
        "age": ["20", "30", "40"], "work": ["a", "b", None], "y": ["low", "mid", "top"],
    }  # fmt: skip
    return fit(columns, FitSettings(label="y"))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_command_makes_elsewhere_the_task_that_it_makes_here(
    there: There, settings: tuple[str, ...]
) -> None:
    made = [there.run(*COMMAND, *settings, is_here=is_here).strip() for is_here in (True, False)]
    here, elsewhere = (there.stored(one).bundle for one in made)
    elsewhere.verify()
    assert replace(elsewhere.task, salt=here.task.salt) == here.task
    assert elsewhere.task.salt != here.task.salt


def test_a_measuring_task_with_an_encoder_is_made_and_written_elsewhere(
    there: There, fitted: Encoder, tmp_path: Path
) -> None:
    encoder, measurement, out = (tmp_path / name for name in ("encoder.json", "measured.json", "bundle.json"))
    encoder.write_bytes(encode(fitted) + b"\n")
    measurement.write_text(json.dumps(SHOP))
    files = ("--encoder", str(encoder), "--measurement", str(measurement), "--out", str(out))
    made = json.loads(there.run(*COMMAND, *files, "--json"))
    stored = there.stored(made["task_id"])
    assert decode(TaskBundle, out.read_bytes()) == stored.bundle
    assert TaskStore(there.of.engine).encoder(stored.task_id) == fitted
    task = stored.bundle.task
    assert (task.num_features, task.labels.size, made["expires_at"]) == (2, 3, 1200)
    assert task.measurement is not None
    assert task.measurement.keys[1].size == 3


def test_a_client_elsewhere_makes_a_task(there: There, fitted: Encoder) -> None:
    asked: dict[str, Any] = {"min_batch_size": 2, "clip_norm": 1.0, "epsilon": 2.0, "encoder": fitted}
    with there.client() as client:
        made = client.create_task(name="a", origin="https://ads.example", measurement=SHOP, **asked)
        assert made == there.stored(made.task_id.hex())
        assert client.tasks()[-1].task_id in {one.task_id for one in there.of.client.tasks()}
    assert made.bundle.task.encoder == fitted.digest


def test_what_is_not_said_is_the_same_here_and_there(there: There) -> None:
    here = there.of.client.create_task(**WITHOUT_LABELS, classes=2, default_label=0).bundle.task
    answer = there.post(BODY)
    assert answer.status_code == 201, answer.text
    made = decode(TaskBundle, answer.json()["bundle"].encode()).task
    assert made.expires_at - made.starts_at == here.expires_at - here.starts_at == 30 * 86_400
    assert replace(made, salt=here.salt, starts_at=here.starts_at, expires_at=here.expires_at) == here


@pytest.mark.parametrize("name", ["[/x]", "[red]a", "a\x1b[2Jb"], ids=range(3))
def test_a_name_from_elsewhere_spoils_no_list_of_tasks(there: There, name: str) -> None:
    task_id = there.post({**BODY, "name": name}).json()["task_id"]
    shown = name.replace("\x1b", "\\x1b")
    for is_here in (True, False):
        place = (
            ("--data", str(there.of.folder)) if is_here else ("--url", there.url, "--token", there.token())
        )
        for command in (("task", "list"), ("task", "show", task_id)):
            done = CliRunner().invoke(app, [*command, *place], env={"COLUMNS": "300"})
            assert done.exit_code == 0, repr(done.exception)
            assert shown in done.stdout


def test_a_lost_answer_makes_no_second_task(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = ["/tasks"]
    monkeypatch.setattr(api_session, "HTTPConnection", losing_answers(lost))
    before = there.tasks()
    there.run(*COMMAND, *SETTINGS["plain"])
    assert lost == []
    assert there.tasks() == before + 1


def test_who_gives_up_is_told_that_the_task_may_be_there(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_session, "HTTPConnection", losing_answers(["/tasks"]))
    before = there.tasks()
    with (
        Client(url=there.url, token=there.token(), backoff=ONCE) as client,
        pytest.raises(HelperUnavailable, match="may have been created"),
    ):
        client.create_task(**WITHOUT_LABELS, classes=2)
    assert there.tasks() == before + 1


def test_the_same_settings_with_the_same_salt_are_the_same_task(there: There) -> None:
    body = {**BODY, "salt": SALT, "starts_at": 600, "expires_at": 1200}
    first, second = there.post(body), there.post(body)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert there.post({**body, "epsilon": 1.0}).json()["task_id"] != first.json()["task_id"]
    del body["salt"]
    assert len({there.post(body).json()["task_id"] for _ in range(2)}) == 2


@pytest.mark.parametrize(("scope", "reason"), [(Scope.READ, "read_only"), (Scope.OPERATE, "wrong_scope")])
def test_only_a_token_of_its_own_scope_makes_tasks(there: There, scope: Scope, reason: str) -> None:
    before = there.tasks()
    answer = there.post(BODY, scope)
    assert (answer.status_code, answer.json()["reason"]) == (403, reason)
    with there.client(scope) as client, pytest.raises(JobRefused, match=reason):
        client.create_task(**WITHOUT_LABELS, classes=2)
    assert there.tasks() == before


def test_a_helper_that_refuses_a_task_refuses_it_from_elsewhere(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    def floor(_task: Any) -> None:
        raise JobRefused(JobReason.TASK_REFUSED, "min_batch_size is at least 50 here")

    monkeypatch.setattr(there.helpers[1], "floor", floor)
    before = there.tasks()
    answer = there.post(BODY)
    assert (answer.status_code, answer.json()["reason"]) == (422, "task_refused")
    assert "at least 50" in answer.json()["detail"]
    with there.client() as client, pytest.raises(JobRefused, match="at least 50"):
        client.create_task(**WITHOUT_LABELS, classes=2)
    assert there.tasks() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": None}, "label space"),
        ({"num_features": None}, "num-features"),
        ({"helpers": []}, "Extra inputs"),
        ({"version": 2}, "Extra inputs"),
        ({"task_id": "00"}, "Extra inputs"),
        ({"salt": "00"}, "salt"),
        ({"salt": "zz" * 16}, "salt"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 1e300}, "epsilon"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"delta": 1.0}, "delta"),
        ({"min_batch_size": 10**30}, "min_batch_size"),
        ({"min_batch_size": True}, "min_batch_size"),
        ({"min_batch_size": "2"}, "min_batch_size"),
        ({"num_decoys": 2}, "num_decoys"),
        ({"norm": "l1"}, "norm"),
        ({"mechanism": "magic"}, "mechanism"),
        ({"days": 1e300}, "days"),
        ({"days": 0.0}, "expires_at"),
        ({"starts_at": -1}, "starts_at"),
        ({"starts_at": 10**30}, "starts_at"),
        ({"time_bucket_s": 0}, "time_bucket_s"),
        ({"labels": {"kind": "classes", "size": 1 << 30}}, "labels"),
        ({"labels": {"kind": "classes", "size": 1 << 20}}, "num_decoys"),
        ({"labels": {"kind": "values", "size": 9}}, "num_buckets"),
        ({"updates": {"num_parameters": 10**9}}, "updates"),
        ({"updates": {"num_parameters": 9}, "unit": "report"}, "unit user"),
        ({"measurement": {"min_cell_count": 1, "values": 7, "keys": []}}, "values"),
        ({"measurement": {"colour": 1}}, "Measurement"),
        ({"measurement": {**SHOP, "values": [{"name": "group", "low": 0, "high": 1}]}}, "may not be named"),
        (
            {"measurement": {**SHOP, "keys": [{"name": "k", "categories": ["a", "(rest)"]}]}},
            "may not have the category '(rest)'",
        ),
        ({"encoder": "{}"}, "Encoder"),
        ({"encoder": ""}, "Encoder"),
        ({"encoder": "x" * (5 << 20)}, "Encoder"),
        ({"name": ""}, "name"),
        ({"name": "\ud800"}, ""),
        ({"origin": "x" * 201}, "origin"),
    ],
)  # fmt: skip
def test_wrong_settings_make_no_task_and_say_which(there: There, change: dict[str, Any], said: str) -> None:
    before, signed = there.tasks(), [len(one.registered) for one in there.helpers]
    answer = there.post({**BODY, **change})
    assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_task")
    assert said in answer.json()["detail"]
    assert there.tasks() == before
    assert [len(one.registered) for one in there.helpers] == signed


@pytest.mark.parametrize(
    "sent",
    ["", "{", "[]", "null", '"a"', "\xff", "[" * 100_000, '{"a":' * 50_000, "NaN",
     json.dumps(BODY).replace("2.0", "NaN"), json.dumps(BODY).replace("2.0", "Infinity"),
     json.dumps(BODY).replace("2.0", "1e999"), json.dumps({**BODY, "days": float("nan")})],
    ids=range(13),
)  # fmt: skip
def test_what_is_no_settings_is_a_problem(there: There, sent: str) -> None:
    answer = there.post(sent)
    assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_task")


def test_an_encoder_that_does_not_fit_makes_no_task(there: There, fitted: Encoder) -> None:
    text = encode(fitted).decode()
    fits = {**BODY, "encoder": text, "num_features": 2, "labels": {"kind": "classes", "size": 3}}
    assert there.post(fits).status_code == 201
    for change in ({"num_features": 4}, {"labels": BODY["labels"]}, {"encoder": f" {text}"}):
        answer = there.post({**fits, **change})
        assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_task"), change
