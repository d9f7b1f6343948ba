"""An ad server elsewhere: `Client(url=...)` and the commands with --url do there what they do here."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.client import Client
from adserver.client.api_session import _connect
from adserver.client.local import LocalAdServer
from adserver.client.remote import RemoteAdServer
from adserver.dashboard.page_data import Figures
from adserver.ingest.http_server import HttpServer
from adserver.messages.job import job_facts
from adserver.messages.site import HelperMessage
from adserver.peers.retrying import ONCE
from adserver.records.access import GrantKind, Scope
from adserver.records.job_state import JobState
from adserver.records.optimizer_kinds import ScheduleKind
from adserver.records.submissions import FederatedSubmission
from adserver.records.training_plan import Schedule
from maskedlark.errors import HelperUnavailable, InvalidModel, InvalidTask, JobReason, JobRefused
from maskedlark.privacy.relation import Relation
from tests.adserver.job_world import ENCODED_MODEL, plan_for
from tests.adserver.painted import OF, Painted, painted
from tests.patience import HANGS_S
from tests.refusals import refused

DATASET = OF.datasets[0].dataset_id.hex()
RUNNING = "02" * 16  # whole: the ids of the jobs that are submitted here are drawn
TRAINING: dict[str, Any] = {
    "loss": "binary_cross_entropy_with_logits",
    "learning_rate": 0.5,
    "rounds": 3,
    "noise_multiplier": 80.0,
    "dataset": DATASET[:8],
    "wait": False,
}


@contextmanager
def serving_door(of: Painted) -> Iterator[str]:
    """Yield where an ad server's admin API is served; close the ad server at the end."""
    with of.door() as door:
        server = HttpServer(door, "127.0.0.1:0", None, headers=())
        try:
            server.wait_until_started()
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.stop()
    of.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Painted, str]]:
    of = painted(Path(tmp_path_factory.mktemp("painted")) / "adserver")
    with serving_door(of) as url:
        yield of, url


@pytest.fixture
def far(served: tuple[Painted, str]) -> Iterator[Client]:
    of, url = served
    with Client(url=url, token=of.grant(GrantKind.TOKEN, Scope.OPERATE)) as client:
        yield client


def test_what_is_there_is_what_is_seen_from_afar(served: tuple[Painted, str], far: Client) -> None:
    here = served[0].client
    assert far.tasks() == here.tasks()
    for task in here.tasks():
        assert far.server.encoder(task.task_id.hex()) == here.server.encoder(task.task_id.hex())
    assert far.datasets() == here.datasets()
    assert [one.job_id for one in far.jobs()] == [one.job_id for one in here.jobs()]
    for mine, theirs in zip(here.jobs(), far.jobs(), strict=True):
        assert theirs.figures() == mine.figures()
        assert theirs.summary() == mine.summary()


def test_labels_from_afar_cost_the_same(served: tuple[Painted, str], far: Client) -> None:
    mine, theirs = (
        [one.labels for one in client.budgets(relation=Relation.LABEL)] for client in (served[0].client, far)
    )
    assert mine == theirs
    assert None not in mine
    assert all(one.labels is None for one in far.budgets())


def test_budgets_from_afar_cost_the_same(served: tuple[Painted, str], far: Client) -> None:
    for mine, theirs in zip(served[0].client.budgets(), far.budgets(), strict=True):
        assert (theirs.ad_server, theirs.colluding) == (mine.ad_server, mine.colluding)
        assert [one.use.use_id for one in theirs.uses] == [one.use.use_id for one in mine.uses]
        assert theirs.dataset == mine.dataset
        assert theirs.next_epsilon == mine.next_epsilon


def test_a_plan_from_afar_is_the_same_plan(served: tuple[Painted, str], far: Client) -> None:
    asked: dict[str, Any] = {"rounds": 4, "batch_size": 40.0, "dataset": DATASET}
    assert far.plan(ENCODED_MODEL, **asked) == served[0].client.plan(ENCODED_MODEL, **asked)
    for client in (far, served[0].client):
        with pytest.raises(InvalidModel, match="use binary_cross_entropy_with_logits on logits"):
            client.plan(ENCODED_MODEL, loss="binary_cross_entropy", **asked)
    divided: dict[str, Any] = {
        "num_parameters": 50,
        "reports": 4_000,
        "rounds": 20,
        "jobs": 3,
        "tests": 7,
        "learning_rate": 0.1,
        "schedule": Schedule(kind=ScheduleKind.COSINE),
        "task": served[0].client.tasks()[0].task_id.hex(),
    }
    assert far.plan(**divided) == served[0].client.plan(**divided)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("line", {"devices": 3, "rounds": 2, "bound": {"clip_norm": 1.0}, "epsilon": 4.0}),
        ("draw-and-discard", {"instances": 4, "learning_rate": 0.01}),
    ],
)
def test_a_job_without_helpers_is_planned_opened_closed_and_exported_from_afar(
    served: tuple[Painted, str], far: Client, kind: str, settings: dict[str, Any]
) -> None:
    near = served[0].client.server
    asked = FederatedSubmission(
        kind=kind, settings=settings, widths=(4, 2), is_without_helpers=True, updates_each=3, name="at home"
    )
    assert far.server.plan(asked) == near.plan(asked)
    job = far.submit(asked)
    assert job.record == served[0].jobs.get(job.job_id)
    assert (job.state, job.record.name, job.summary()["updates"]) == (JobState.OPEN, "at home", 0)
    job.cancel()
    assert (job.state, job.is_over) == (JobState.CLOSED, True)
    assert job.export() == near.export(job.job_id).encoded
    assert far.compare_jobs(job.job_id.hex())[0]["epsilon"] is None
    with pytest.raises(InvalidTask, match="calibrate one with helpers"):
        job.calibrate(evaluation="00")
    job.resume()
    assert job.state is JobState.OPEN
    job.cancel()


def test_every_face_compares_jobs_by_the_same_figures_and_warns_alike(tmp_path: Path) -> None:
    of = painted(tmp_path / "adserver")
    plan = plan_for(OF, job_id=b"\7" * 16)
    of.jobs.submit(plan, eval_set_digest=bytes(32))  # another evaluation set
    of.round(plan.job.job_id, 0)
    with serving_door(of) as url, Client(url=url, token=of.grant(GrantKind.TOKEN, Scope.OPERATE)) as far:
        commands = json.loads(told((of, url), "job", "compare", "--json"))
        printed, client = told((of, url), "job", "compare"), far.compare_jobs()
        here, page = of.client.compare_jobs(), Figures(of.site).jobs("", "")
    assert commands == client == here
    by_id = {one["job"]: one for one in client}
    figures = ("batch", "learning_rate", "noise_multiplier", "loss", "calibrated_loss", "accuracy", "auc")
    assert len(page["compared"]) > 1
    for row in page["compared"]:
        one = by_id[row["job_id"]]
        for name in (*figures, "best_loss", "best_calibrated_loss", "best_rounds"):
            assert row[name] == one[name]
    assert page["not_comparable"].startswith("these jobs have different evaluation sets")
    assert f"warning: {page['not_comparable']}" in printed
    assert repr(client).endswith(f"warning: {page['not_comparable']}")


def test_a_lost_job_is_closed_from_afar_and_one_that_is_there_is_not(
    served: tuple[Painted, str], far: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in (far, served[0].client):
        with refused(JobReason.WRONG_STATE) as refusal:
            client.close_lost_job(RUNNING)
        assert "adserver job cancel" in str(refusal.value)
        with refused(JobReason.UNKNOWN_JOB):
            client.close_lost_job(RUNNING[:30])
    assert ("cancel_job", "wrong_state") in [
        (one.act, one.outcome) for one in served[0].client.audit_log(is_newest=True)
    ]
    monkeypatch.setattr(LocalAdServer, "close_lost_job", lambda _, job_id: job_id[0])
    assert far.close_lost_job("AB" * 16) == 0xAB


def test_a_job_is_trained_and_cancelled_from_afar(served: tuple[Painted, str], far: Client) -> None:
    job = far.train(ENCODED_MODEL, **TRAINING, name="ünamed", note="two layers")
    stored = served[0].jobs.get(job.job_id)
    assert (stored.name, stored.note) == (job.record.name, job.record.note) == ("ünamed", "two layers")
    [compared] = far.compare_jobs(job.job_id.hex())
    assert (compared["name"], compared["rounds"], compared["loss"]) == ("ünamed", 3, None)
    assert len(far.compare_jobs()) == len(far.jobs())
    with pytest.raises(InvalidTask, match="note"):
        far.train(ENCODED_MODEL, **TRAINING, note="n" * 1_001)
    for given in ("a\0b", "a\x1b[2J"):
        with pytest.raises(InvalidTask, match="name has a control character"):
            far.train(ENCODED_MODEL, **TRAINING, name=given)
    assert job.record.plan == stored.plan
    assert (job.state, stored.rounds) == (JobState.QUEUED, 3)
    job.cancel()
    assert served[0].jobs.get(job.job_id).state is JobState.CANCELLED
    assert job.is_over
    with pytest.raises(JobRefused) as refusal:
        job.resume()
    assert refusal.value.reason is JobReason.WRONG_STATE
    with pytest.raises(JobRefused) as too_early:
        job.export()
    assert too_early.value.reason is JobReason.WRONG_STATE


def test_a_refusal_from_afar_is_the_same_error(far: Client) -> None:
    with pytest.raises(JobRefused) as unknown:
        far.job("ff" * 16)
    assert unknown.value.reason is JobReason.UNKNOWN_JOB
    with pytest.raises(JobRefused) as several:
        far.job()
    assert several.value.reason is JobReason.UNKNOWN_JOB
    with pytest.raises(InvalidModel):
        far.train(b"no model", **TRAINING)
    with pytest.raises(JobRefused) as spent:
        far.train(ENCODED_MODEL, **{**TRAINING, "noise_multiplier": 0.4, "rounds": 900})
    assert spent.value.reason is JobReason.BUDGET_EXHAUSTED


def test_a_job_is_found_from_afar_by_the_start_of_its_name(far: Client) -> None:
    made = far.train(ENCODED_MODEL, **TRAINING, name="100% ünder / ?x=1#")
    assert far.job("100% ü").job_id == far.job("100%").job_id == made.job_id
    with pytest.raises(JobRefused, match="no path of a URL holds: give the start of its id"):
        far.job("100% ünder /")
    made.cancel()


@pytest.mark.parametrize("job", ["../tasks", "..", "0?x=1", "zz", "01/cancel", "\0", "\udcff"])
def test_what_is_typed_reaches_no_other_path(far: Client, job: str) -> None:
    with pytest.raises(JobRefused) as refusal:
        far.job(job)
    assert refusal.value.reason is JobReason.UNKNOWN_JOB


def test_a_token_that_reads_changes_nothing(served: tuple[Painted, str]) -> None:
    of, url = served
    with Client(url=url, token=of.grant(GrantKind.TOKEN, Scope.READ)) as client:
        assert client.jobs()
        with pytest.raises(JobRefused, match="scope operate or above; this one has read") as refused:
            client.job("01" * 16).cancel()
    assert refused.value.reason is JobReason.UNAUTHORIZED
    with pytest.raises(JobRefused, match=r"does not know the token.* --token, or ADSERVER_TOKEN") as refused:
        RemoteAdServer(url=url, token="mlt_wrong").tasks()  # noqa: S106 - of nothing
    assert refused.value.reason is JobReason.UNAUTHORIZED


def test_a_token_is_revoked_from_afar_by_the_id_that_was_typed(served: tuple[Painted, str]) -> None:
    of, url = served
    token = of.grant(GrantKind.TOKEN, Scope.TOKENS)
    at = ["--url", url, "--token", token]
    for typed, said in (("0" * 32, "no token or session has the name"), ("", "give the start of its id")):
        with pytest.raises(InvalidTask, match=said):
            CliRunner().invoke(app, ["token", "revoke", typed, *at], catch_exceptions=False)
    name = "leaked by somebody"
    RemoteAdServer(url=url, token=token).create_token(Scope.READ, name=name, days=0.01)
    (made,) = (one for one in RemoteAdServer(url=url, token=token).tokens() if one.name == name)
    outcome = CliRunner().invoke(app, ["token", "revoke", made.grant_id, *at], catch_exceptions=False)
    assert f"token {made.grant_id} ({name}) is revoked" in outcome.output


def test_without_a_token_the_command_says_that_none_was_given(served: tuple[Painted, str]) -> None:
    with pytest.raises(JobRefused, match="no token was given: make one"):
        RemoteAdServer(url=served[1], token="").tasks()


def test_the_wrong_scheme_is_hinted_at(served: tuple[Painted, str]) -> None:
    of, url = served
    far = RemoteAdServer(
        url=url.replace("http:", "https:"), token=of.grant(GrantKind.TOKEN, Scope.READ), backoff=ONCE
    )
    with pytest.raises(HelperUnavailable, match=r"does not speak TLS.*begins with http://"):
        far.tasks()


def test_a_token_is_sent_in_the_clear_to_loopback_only() -> None:
    for url in ("http://ads.example:80", "ftp://127.0.0.1", "ads.example", "https://"):
        with pytest.raises(InvalidTask, match="or http on loopback"):
            RemoteAdServer(url=url, token="")
    assert "secret" not in repr(RemoteAdServer(url="https://ads.example", token="secret"))  # noqa: S106


@pytest.mark.parametrize(
    "url",
    ["https://h:99999", "https://h:x", "https://[::1", "https://a b", "https://..:1", "https://\udcff",
     "https://me:hidden@h", "https://hidden@h", "https://h/hidden", "https://h/?code=hidden", "https://h#hidden"],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_url_of_a_server_is_refused_and_shows_no_secret(url: str) -> None:
    with pytest.raises(InvalidTask, match="or http on loopback") as refused:
        RemoteAdServer(url=url, token="")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "token", ["mlt_secret\n", "mlt_secret\r\nhost: h", "mlt_secret€", "mlt_secret b"], ids=range(4)
)
def test_a_token_that_is_none_is_refused_and_not_shown(served: tuple[Painted, str], token: str) -> None:
    with pytest.raises(InvalidTask, match="token") as refused:
        RemoteAdServer(url=served[1], token=token).tasks()
    assert token[:10] not in f"{refused.value!r}"
    outcome = CliRunner().invoke(
        app, ["task", "list"], env={"ADSERVER_URL": served[1], "ADSERVER_TOKEN": token}
    )
    assert isinstance(outcome.exception, InvalidTask)


@pytest.mark.parametrize(
    "url", ["https://[2001:db8::ab]", "http://[::1]:7300/", "http://localhost", "https://a:1"]
)
def test_a_host_with_or_without_a_port_is_a_url(url: str) -> None:
    connection = _connect(RemoteAdServer(url=url, token="").url, ca=None, timeout_s=1.0)
    assert url.rstrip("/") in (
        f"{scheme}://{host}{port}"
        for scheme in ("http", "https")
        for host in (connection.host, f"[{connection.host}]")
        for port in ("", f":{connection.port}")
    )
    assert connection.port in (1, 80, 443, 7300)


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_a_certificate_that_cannot_be_read_is_named(content: str | None, tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    if content is not None:
        ca.write_text(content)
    with pytest.raises(InvalidTask, match=r"ca\.crt \(--url-ca\): (No such|it holds none)"):
        RemoteAdServer(url="https://127.0.0.1:1", token="", ca=ca).tasks()


def test_a_client_is_beside_an_ad_server_or_elsewhere_and_not_both(tmp_path: Path) -> None:
    for beside in ({"data": tmp_path / "no"}, {"helpers": ("127.0.0.1:1", "127.0.0.1:2")}):
        with pytest.raises(ValueError, match="exclude url"):
            Client(url="http://127.0.0.1:1", **beside)


@pytest.mark.parametrize(
    ("status", "content"),
    [(200, "[" * 200_000), (302, "{}"), (200, "[]"), (404, '{"reason": "not_found"}')],
    ids=["nested", "moved", "a list", "an intake's"],
)
def test_what_answers_as_no_ad_server_does_is_refused(status: int, content: str) -> None:
    answer = f"HTTP/1.1 {status} OK\r\ncontent-length: {len(content)}\r\n\r\n{content}".encode()
    with hanging_up(answer) as url, pytest.raises(HelperUnavailable, match="not an ad server's admin API"):
        RemoteAdServer(url=url, token="").tasks()


def test_nobody_at_the_url_is_unavailable() -> None:
    with pytest.raises(HelperUnavailable, match=r"does not answer: nothing listens there: .*-listen"):
        RemoteAdServer(url="http://127.0.0.1:1", token="").tasks()


def test_a_port_that_does_not_speak_http_is_said_to_be_another() -> None:
    with (
        hanging_up(b"\0\0\x18\4\0\r\n") as url,
        pytest.raises(HelperUnavailable, match=r"it does not speak HTTP \(the URL is that of"),
    ):
        RemoteAdServer(url=url, token="").tasks()


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([{"role": 0}, {"role": 1}], [True, True]),
        ([{"role": 0, "cause": "its ledger is older"}, {"role": 1}], [False, True]),
        ([{"role": 0, "is_well": None}, {"role": 1}], [None, True]),
        ([{"role": 0}, {"role": 0}], None),
        ([{"role": 1}, {"role": 0}], None),
        ([{"role": 0}], None),
        ([{"role": 0}, {"role": 1}, {"role": 2}], None),
    ],
)
def test_a_state_of_the_helpers_that_contradicts_itself_is_no_good_one(
    told: list[dict[str, Any]], expected: list[bool | None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = {**dict.fromkeys(HelperMessage.model_fields), "address": "a:1", "is_well": True}
    of |= {"cause": "", "keys": []}
    answer = json.dumps({"helpers": [{**of, **one} for one in told], "certificates": []}).encode()
    patience = []

    def exchange(session: RemoteAdServer, *_: Any, **__: Any) -> tuple[int, bytes]:
        patience.append(session.timeout_s)
        return 200, answer

    monkeypatch.setattr(RemoteAdServer, "_exchange", exchange)
    server = RemoteAdServer(url="http://127.0.0.1:1", token="")
    if expected is None:
        with refused(JobReason.BAD_ANSWER):
            server.helpers()
    else:
        assert [one.is_well for one in server.helpers()] == expected
    # A status is not waited for as long as a computation
    assert patience == [30.0]


@contextmanager
def hanging_up(answer: bytes = b"") -> Iterator[str]:
    """The URL of a server that reads one request, and closes the connection after its answer, if any."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(HANGS_S)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(HANGS_S)
                connection.recv(65_536)
                connection.sendall(answer)

        serving = Thread(target=serve)
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            serving.join(HANGS_S)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 504 Gone\r\ncontent-length: 6\r\n\r\n<html>"], ids=range(2)
)
def test_what_may_have_been_done_is_not_to_be_asked_again_blindly(answer: bytes) -> None:
    with (
        hanging_up(answer) as url,
        pytest.raises(HelperUnavailable, match="check that ad server before you repeat it"),
    ):
        RemoteAdServer(url=url, token="").cancel(bytes(16))


def test_what_surely_was_not_done_may_be_asked_again() -> None:
    with hanging_up() as url, pytest.raises(HelperUnavailable) as refused:
        RemoteAdServer(url=url, token="").tasks()
    with pytest.raises(HelperUnavailable) as unreached:
        RemoteAdServer(url="http://127.0.0.1:1", token="").cancel(bytes(16))
    assert "check that ad server" not in f"{refused.value} {unreached.value}"


def told(served: tuple[Painted, str], *command: str) -> str:
    of, url = served
    token = of.grant(GrantKind.TOKEN, Scope.OPERATE)
    outcome = CliRunner().invoke(app, [*command, "--url", url, "--token", token])
    assert outcome.exit_code == 0, outcome.output + str(outcome.exception)
    return outcome.stdout


def test_commands_say_from_afar_what_they_say_here(served: tuple[Painted, str], tmp_path: Path) -> None:
    of = served[0]
    shown = json.loads(told(served, "job", "show", RUNNING, "--json"))
    job = of.jobs.find(RUNNING)
    assert shown == job_facts(job, of.jobs.last_evaluated(job.job_id)).model_dump(mode="json")
    assert "running" in told(served, "job", "list")
    assert "37/60" in told(served, "job", "list")
    assert "left" in told(served, "budget", "--dataset", DATASET[:10], "--rounds", "3")
    told(served, "job", "show", RUNNING, "--plot", str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_a_job_is_planned_submitted_and_cancelled_by_commands(
    served: tuple[Painted, str], tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(ENCODED_MODEL)
    at = ("--model", str(model), "--dataset", DATASET)
    plan = told(served, "job", "plan", *at, "--rounds", "3", "--batch-size", "40")
    assert "submit it with: --rounds 3" in plan
    made = told(
        served,
        "job",
        "submit",
        *at,
        *("--loss", TRAINING["loss"], "--learning-rate", "0.5", "--rounds", "3"),
        *("--noise-multiplier", "90"),
    ).strip()
    assert served[0].jobs.find(made).state is JobState.QUEUED
    assert "cancelled after 0 of 3 rounds" in told(served, "job", "cancel", made)
    assert served[0].jobs.find(made).state is JobState.CANCELLED


def test_without_a_folder_and_a_url_a_command_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADSERVER_DATA", "ADSERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    outcome = CliRunner().invoke(app, ["job", "list"])
    assert outcome.exit_code == 2
    assert "--url" in outcome.output
