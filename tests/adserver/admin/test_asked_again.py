"""A client that lost an answer asks again under the id that it chose: the same answer, and one charge."""

import json
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

import numpy as np
import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.client import Client, api_session
from adserver.client.api_session import ApiSession
from adserver.client.local import LocalAdServer
from adserver.measuring.evaluation_result import EvaluationResult
from adserver.measuring.result import AggregateResult
from adserver.messages.evaluation import EvaluationMessage
from adserver.messages.query import ResultMessage
from adserver.peers.replies import HelperStatus, QueryAnswer
from adserver.peers.retrying import BRIEF, ONCE, Backoff
from adserver.records.access import GrantKind, Scope
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from maskedlark.model.dense import dense_network
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import QuerySpec
from maskedlark.runtime.keyed_lock import KeyedLock
from tests.adserver.asked_site import Ledgered, There, asked_site, losing_answers
from tests.adserver.evaluation_helper import status_with
from tests.adserver.job_world import ENCODED_MODEL
from tests.adserver.painted import OF, SHOP_DATASET
from tests.patience import HANGS_S

# Nearly all tests here measure the same, and more than once.
pytestmark = pytest.mark.filterwarnings("ignore:.* was of this, too")

DATASET: Final = OF.datasets[0].dataset_id.hex()
QUERY: Final[dict[str, Any]] = {
    "values": ["click"], "group_by": ["place"], "epsilon": 0.1, "dataset": SHOP_DATASET.hex()[:8],
}  # fmt: skip
FOUND: Final[dict[str, Any]] = {
    "values": ["click"], "group_by": ["campaign"], "discover": True, "dataset": SHOP_DATASET.hex(),
}  # fmt: skip


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    with asked_site(Path(tmp_path_factory.mktemp("asked"))) as made:
        yield made


@pytest.fixture
def dropping(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []
    monkeypatch.setattr(api_session, "HTTPConnection", losing_answers(paths))
    return paths


class Slow:
    """A helper as a server sees it whose call takes long, and may then be refused."""

    def __init__(self, helper: Ledgered, *, is_refused: bool) -> None:
        self.helper, self.is_refused = helper, is_refused
        self.came, self.go = Event(), Event()

    def status(self) -> HelperStatus:
        return status_with()

    def run_query(self, *asked: Any, cancelled: Event | None = None) -> QueryAnswer:
        self.came.set()
        assert self.go.wait(HANGS_S)
        if self.is_refused:
            raise JobRefused(JobReason.BUDGET_EXHAUSTED, "nothing was left")
        return self.helper.run_query(*asked, cancelled=cancelled)


def as_json(answer: AggregateResult | EvaluationResult) -> str:
    """An answer in a form in which figures without an interval, which are NaN, are equal."""
    message = EvaluationMessage if isinstance(answer, EvaluationResult) else ResultMessage
    return message.of(answer).model_dump_json()  # type: ignore[arg-type]  # of its own kind


def server_of(there: There, helpers: Any, backoff: Backoff = BRIEF) -> Client:
    """Another server of the same database, with helpers as it sees them."""
    return Client.of(LocalAdServer.over(there.of.engine, helpers, data=there.of.folder, backoff=backoff))


def test_the_same_request_under_its_id_has_the_same_answer_and_one_charge(there: There) -> None:
    asked = {**QUERY, "query_id": "a0" * 16}
    calls = [one.calls for one in there.helpers]
    with there.charging(1):
        answers = [there.post("/queries", asked) for _ in range(3)]
    assert [one.status_code for one in answers] == [201] * 3
    assert answers[0].json() == answers[1].json() == answers[2].json()
    assert answers[0].json()["query_id"] == "a0" * 16
    assert [one.calls for one in there.helpers] == [1 + had for had in calls]


def test_a_client_that_loses_an_answer_asks_again_and_pays_once(there: There, dropping: list[str]) -> None:
    dropping += ["/queries", "/evaluations"]
    with there.charging(2), there.client() as client:
        result = client.aggregate("click", group_by=["place"], epsilon=0.1, dataset=SHOP_DATASET.hex())
        evaluation = client.evaluate(ENCODED_MODEL, bins=10, epsilon=0.1, dataset=DATASET)
        assert as_json(client.repeat_aggregate(result.query_id)) == as_json(result)
        assert as_json(client.repeat_evaluate(evaluation.query_id)) == as_json(evaluation)
    assert dropping == []


def test_what_was_measured_before_is_named_with_the_way_to_see_it_again(there: There) -> None:
    """Of equal values, groups, conditions and dataset; here and from elsewhere."""
    asked: dict[str, Any] = {"epsilon": 0.01, "dataset": SHOP_DATASET.hex()}
    with there.charging(4), there.client() as client:
        first = client.aggregate("purchase", group_by="place", where={"campaign": 3}, **asked)
        with warnings.catch_warnings(record=True) as unsaid:
            client.aggregate("purchase", where={"campaign": 3}, **asked)
        assert unsaid == []
        for one in (client, there.of.client):
            with pytest.warns(UserWarning, match=rf"query {first.query_id[:12]} was of this, too") as said:
                again = one.aggregate("purchase", group_by="place", where={"campaign": 3}, **asked)
            assert "purchase by place where campaign = 3: query" in str(said[0].message)
            assert said[0].filename == __file__
            assert again.query_id != first.query_id
            first = again
        assert len(client.server.queries(latest=2)) == 2
        assert client.server.queries(latest=2) == there.of.client.server.queries(latest=2)
        assert client.server.queries(latest=2) == client.server.queries()[-2:]


def test_an_answer_that_was_charged_is_returned_where_warnings_are_errors(
    there: There, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {"epsilon": 0.01, "dataset": SHOP_DATASET.hex()}
    with there.charging(2), there.client() as client, warnings.catch_warnings():
        warnings.simplefilter("error")
        first, again = (client.aggregate("click", where={"place": "oslo"}, **asked) for _ in range(2))
    assert first.query_id != again.query_id
    assert "warning: click where place = oslo: query" in capsys.readouterr().err


def test_noise_that_drowns_all_reports_is_warned_of_before_it_is_charged(there: There) -> None:
    asked: dict[str, Any] = {"group_by": "place", "epsilon": 1e-6, "dataset": SHOP_DATASET.hex()}
    with there.charging(2), there.client() as client:
        for one in (client, there.of.client):
            with pytest.warns(UserWarning, match=r"99 % interval of count is .*12,400 reports") as said:
                one.aggregate("count", **asked)
            assert "forecast_aggregate says so before a charge" in str(said[0].message)
            assert said[0].filename == __file__
    token = there.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    typed = ["--url", there.url, "--token", token, "--dataset", SHOP_DATASET.hex(), "--value", "count"]
    for epsilon, is_warned in (("0.000001", True), ("0.1", False)):
        with there.charging(1):
            done = CliRunner().invoke(app, ["aggregate", *typed, "--epsilon", epsilon, "--json"])
        assert json.loads(done.stdout)["rows"]
        assert ("warning: at this epsilon the answer is noise: half of" in done.stderr) == is_warned
        assert ("--plan says so before a charge" in done.stderr) == is_warned


def test_numbers_of_numpy_are_asked_from_elsewhere_as_they_are_here(there: There) -> None:
    query: dict[str, Any] = {"dataset": SHOP_DATASET.hex(), "query_id": "f6" * 16}
    evaluation: dict[str, Any] = {"dataset": DATASET, "query_id": "f7" * 16, "bins": np.int64(10)}
    query["epsilon"] = evaluation["epsilon"] = np.float32(0.125)
    with there.charging(2), there.client() as client:
        far, here = (
            (
                ResultMessage.of(one.aggregate("click", **query)),
                EvaluationMessage.of(one.evaluate(ENCODED_MODEL, **evaluation)),
            )
            for one in (client, there.of.client)
        )
    # as JSON, for a figure without an interval has NaN, which equals nothing
    assert [one.model_dump_json() for one in far] == [one.model_dump_json() for one in here]


def test_who_gives_up_is_told_the_id_that_asks_for_the_answer(there: There, dropping: list[str]) -> None:
    asked: dict[str, Any] = {"epsilon": 0.1, "dataset": SHOP_DATASET.hex()}
    dropping.append("/queries")
    with there.charging(1):
        with there.client(ONCE) as client, pytest.raises(HelperUnavailable, match="with query id") as lost:
            client.aggregate("click", **asked)
        assert "check that ad server" not in str(lost.value)
        query_id = str(lost.value).split("query id ")[1][:32]
        with there.client(ONCE) as later:
            assert later.aggregate("click", **asked, query_id=query_id).query_id == query_id


def test_an_answer_that_no_table_can_show_is_refused_and_asked_for_again_under_its_id(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"epsilon": 0.1, "dataset": SHOP_DATASET.hex()}
    exchange = ApiSession._exchange

    def spoil(session: ApiSession, method: str, path: str, *rest: Any, **named: Any) -> tuple[int, bytes]:
        status, content = exchange(session, method, path, *rest, **named)
        said = json.loads(content)
        if path == "/queries" and method == "POST":
            said["rows"][0]["click"]["value"] = 1e308
        return status, json.dumps(said).encode()

    with there.charging(1), there.client(ONCE) as client:
        with monkeypatch.context() as spoilt:
            spoilt.setattr(ApiSession, "_exchange", spoil)
            with pytest.raises(JobRefused, match=r"expected a number from -1e\+30 to 1e\+30; the") as refused:
                client.aggregate("click", **asked)
        assert refused.value.reason is JobReason.BAD_ANSWER
        query_id = str(refused.value).split("query id ")[1][:32]
        assert client.aggregate("click", **asked, query_id=query_id).query_id == query_id


def test_two_who_ask_at_once_under_one_id_share_one_answer_and_one_charge(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_came = Event()

    class Counted(KeyedLock):
        callers = 0

        def hold(self, key: bytes) -> Any:
            Counted.callers += 1
            if Counted.callers == 2:
                both_came.set()
            return super().hold(key)

    server: Any = there.of.client.server
    monkeypatch.setattr(server.measuring, "_turns", Counted())
    for one in there.helpers:
        monkeypatch.setattr(one, "waits", both_came)
    calls = [one.calls for one in there.helpers]
    asked = {**QUERY, "query_id": "a1" * 8 + "0b" * 8}
    with there.charging(1), ThreadPoolExecutor(2) as pool:
        answers = [one.result() for one in [pool.submit(there.post, "/queries", asked) for _ in range(2)]]
    assert [one.status_code for one in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert [one.calls for one in there.helpers] == [1 + had for had in calls]


@pytest.mark.parametrize("is_refused", [False, True], ids=["both are answered", "one is refused"])
def test_two_servers_of_one_database_share_one_answer_and_one_charge(there: There, is_refused: bool) -> None:
    """The first one's helpers are slow; the second server knows nothing of it but what the database says."""
    asked: dict[str, Any] = {"epsilon": 0.1, "dataset": SHOP_DATASET.hex()}
    asked["query_id"] = ("f1" if is_refused else "f2") * 16
    slow = [Slow(one, is_refused=is_refused) for one in there.helpers]
    first, second = (server_of(there, helpers) for helpers in (slow, there.helpers))
    with there.charging(1), ThreadPoolExecutor(1) as pool:
        early = pool.submit(first.aggregate, "click", **asked)
        try:
            assert all(one.came.wait(HANGS_S) for one in slow)
            late = second.aggregate("click", **asked)
        finally:
            for one in slow:
                one.go.set()
        if is_refused:
            with pytest.raises(JobRefused, match="nothing was left"):
                early.result(HANGS_S)
        else:
            assert early.result(HANGS_S).rows == late.rows
        assert second.aggregate("click", **asked) == late
    assert second.repeat_aggregate(late.query_id).rows == late.rows


def test_a_query_that_another_server_forgot_meanwhile_is_kept_with_its_answer(there: There) -> None:
    """The first server's helpers refuse it while the second server asks, which is then charged."""
    asked: dict[str, Any] = {"epsilon": 0.1, "dataset": SHOP_DATASET.hex(), "query_id": "f3" * 16}
    refused, answered = ([Slow(one, is_refused=is_it) for one in there.helpers] for is_it in (True, False))
    first, second = (server_of(there, helpers) for helpers in (refused, answered))
    with there.charging(1), ThreadPoolExecutor(2) as pool:
        early = pool.submit(first.aggregate, "click", **asked)
        try:
            assert all(one.came.wait(HANGS_S) for one in refused)
            late = pool.submit(second.aggregate, "click", **asked)
            assert all(one.came.wait(HANGS_S) for one in answered)
            for one in refused:
                one.go.set()
            with pytest.raises(JobRefused, match="nothing was left"):
                early.result(HANGS_S)
        finally:
            for one in (*refused, *answered):
                one.go.set()
        result = late.result(HANGS_S)
    kept = there.post("/queries", {"values": ["click"], **asked}).json()
    assert ResultMessage.model_validate_json(json.dumps(kept)).rows == ResultMessage.of(result).rows


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("/queries", {"values": ["purchase"]}),
        ("/queries", {"epsilon": 0.2}),
        ("/queries", {"where": {"place": "oslo"}}),
        ("/queries", {"dataset": SHOP_DATASET.hex()}),
        ("/queries", {"group_by": ["campaign"], "discover": True}),
        ("/evaluations", None),
    ],
    ids=["values", "epsilon", "where", "dataset", "discovery", "an evaluation"],
)
def test_another_request_under_a_used_id_is_refused(
    there: There, path: str, changed: dict[str, Any] | None
) -> None:
    there.post("/queries", {**QUERY, "query_id": "a2" * 16})
    other = {"job": "06", "dataset": DATASET} if changed is None else {**QUERY, **changed}
    with there.charging(0):
        answer = there.post(path, {**other, "query_id": "a2" * 16})
    assert (answer.status_code, answer.json()["reason"]) == (409, "query_changed")


@pytest.mark.parametrize(
    ("asked", "charged"),
    [(QUERY, 1), ({**FOUND, "epsilon": 0.3}, 2)],
    ids=["a query", "a query with a discovery"],
)
def test_the_same_request_under_the_id_that_the_ad_server_drew_has_the_same_answer(
    there: There, asked: dict[str, Any], charged: int
) -> None:
    with there.charging(charged):
        first = there.post("/queries", asked)
        again = there.post("/queries", {**asked, "query_id": first.json()["query_id"]})
    assert (first.status_code, again.json()) == (201, first.json())
    with there.charging(0):
        other = there.post("/queries", {**asked, "epsilon": 0.2, "query_id": first.json()["query_id"]})
    assert (other.status_code, other.json()["reason"]) == (409, "query_changed")


def test_the_same_evaluation_under_the_id_that_the_ad_server_drew_has_the_same_answer(there: There) -> None:
    evaluate = partial(there.of.client.evaluate, ENCODED_MODEL, bins=10, epsilon=0.1, dataset=DATASET)
    with there.charging(1):
        first = evaluate()
        again = evaluate(query_id=first.query_id)
    assert as_json(first) == as_json(again)


@pytest.mark.parametrize("role", [0, 1])
def test_without_both_helpers_a_new_query_is_refused_before_it_is_kept_and_an_answered_one_is_not(
    there: There, monkeypatch: pytest.MonkeyPatch, role: int
) -> None:
    server = server_of(there, there.helpers, ONCE)
    asked: dict[str, Any] = {"dataset": SHOP_DATASET.hex(), "query_id": f"9{role}" * 16}
    answered = server.aggregate("click", **asked)
    kept = len(server.queries())
    monkeypatch.setattr(there.helpers[role], "away", HelperUnavailable("no server is listening there"))
    with there.charging(0):
        for ask in (
            partial(server.aggregate, "click", epsilon=0.1, dataset=SHOP_DATASET.hex()),
            partial(server.evaluate, ENCODED_MODEL, dataset=DATASET),
        ):
            with pytest.raises(HelperUnavailable, match="this attempt charged nothing: start both helpers"):
                ask()
        assert server.aggregate("click", **asked) == answered
    assert len(server.queries()) == kept


@pytest.mark.parametrize("role", [0, 1])
def test_a_query_is_not_asked_while_a_helper_says_that_it_is_not_well(
    there: There, monkeypatch: pytest.MonkeyPatch, role: int
) -> None:
    server = server_of(there, there.helpers, ONCE)
    kept = len(server.queries())
    monkeypatch.setattr(there.helpers[role], "not_well", "the ledger is older than its answers")
    with (
        there.charging(0),
        pytest.raises(HelperUnavailable, match=r"older than .*this attempt charged nothing"),
    ):
        server.evaluate(ENCODED_MODEL, dataset=DATASET)
    assert len(server.queries()) == kept


def test_a_query_that_one_helper_alone_refuses_is_named_and_charged_once_when_it_is_repeated(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of(there, there.helpers, ONCE)
    with there.charging(1):
        lost = JobRefused(JobReason.DATASET_LOST, "a stored dataset cannot be read")
        monkeypatch.setattr(there.helpers[0], "refuses", lost)
        with pytest.raises(JobRefused, match="the other helper may have charged it") as refused:
            server.evaluate(ENCODED_MODEL, dataset=DATASET)
        assert refused.value.reason is JobReason.DATASET_LOST
        query_id = str(refused.value).split("--query-id ")[1][:32]
        monkeypatch.setattr(there.helpers[0], "refuses", None)
        assert server.evaluate(ENCODED_MODEL, dataset=DATASET, query_id=query_id).query_id == query_id


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"values": ["clicks"]}, JobReason.UNDECLARED),
        ({"values": ["click"], "group_by": ["city"]}, JobReason.UNDECLARED),
        ({"values": []}, JobReason.MALFORMED),
        ({"values": ["click"], "epsilon": 1e6}, None),
        ({"values": ["clicks"], "group_by": ["campaign"], "discover": True}, JobReason.UNDECLARED),
        (
            {"values": ["click"], "group_by": ["campaign"], "discover": True, "where": {"city": "1"}},
            JobReason.UNDECLARED,
        ),
    ],
    ids=["value", "key", "nothing", "epsilon", "value of a discovery", "condition of a discovery"],
)
def test_a_wrong_query_is_refused_without_helpers_and_before_its_discovery_is_charged(
    there: There, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], reason: JobReason | None
) -> None:
    server = server_of(there, there.helpers, ONCE)
    values = wrong.pop("values")
    kept = len(server.queries())
    for away in (None, HelperUnavailable("no server is listening there")):
        monkeypatch.setattr(there.helpers[0], "away", away)
        with there.charging(0), pytest.raises((JobRefused, InvalidTask)) as refused:
            server.aggregate(*values, dataset=SHOP_DATASET.hex(), **wrong)
        assert getattr(refused.value, "reason", None) is reason
    assert len(server.queries()) == kept


@pytest.mark.parametrize(("kind", "command"), [(QuerySpec, "aggregate"), (EvaluationSpec, "evaluate")])
def test_who_loses_an_answer_is_told_the_id_under_which_the_same_request_costs_nothing(
    there: There, kind: type, command: str
) -> None:
    server = server_of(there, there.helpers, ONCE)
    calls: dict[str, Any] = {
        "aggregate": partial(server.aggregate, "click", dataset=SHOP_DATASET.hex()),
        "evaluate": partial(server.evaluate, ENCODED_MODEL, dataset=DATASET),
    }
    there.helpers[1].lost.append(kind)
    with there.charging(1):
        with pytest.raises(HelperUnavailable, match="is kept and counts as spent") as lost:
            calls[command]()
        query_id = str(lost.value).split("--query-id ")[1][:32]
        assert calls[command](query_id=query_id).query_id == query_id
        assert getattr(server, f"repeat_{command}")(query_id).query_id == query_id


def test_who_loses_a_discovery_is_told_the_id_and_a_repetition_says_what_both_cost(there: There) -> None:
    server = server_of(there, there.helpers, ONCE)
    asked: dict[str, Any] = {"group_by": ["campaign"], "discover": True, "dataset": SHOP_DATASET.hex()}
    there.helpers[1].lost.append(DiscoverySpec)
    with there.charging(2):
        with pytest.raises(HelperUnavailable, match="is kept and counts as spent") as lost:
            server.aggregate("click", epsilon=0.35, **asked)
        query_id = str(lost.value).split("--query-id ")[1][:32]
        found = server.aggregate("click", epsilon=0.35, query_id=query_id, **asked)
    assert server.repeat_aggregate(query_id).cost == found.cost
    with there.client() as far:
        assert far.server.repeat_aggregate(query_id).cost == found.cost


@pytest.mark.parametrize("kind", [QuerySpec, DiscoverySpec])
def test_what_a_helper_charged_and_could_not_say_is_not_charged_again(there: There, kind: type) -> None:
    asked = {**FOUND, "epsilon": 0.1 if kind is QuerySpec else 0.2}
    asked["query_id"] = ("b1" if kind is QuerySpec else "b2") * 16
    with there.charging(2):  # the discovery, and the query
        there.helpers[1].lost.append(kind)
        assert there.post("/queries", asked).status_code == 503
        found = there.post("/queries", asked)
    assert found.status_code == 201, found.text
    assert there.post("/queries", asked).json() == found.json()
    plain = there.post("/queries", {**FOUND, "epsilon": asked["epsilon"]})
    assert found.json()["epsilon"] == plain.json()["epsilon"]  # with what the discovery cost
    with there.charging(0):
        other = there.post("/queries", {**asked, "values": ["purchase"]})
    assert other.json()["reason"] == "query_changed"


def test_an_id_that_both_helpers_refuse_is_free_again(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = JobRefused(JobReason.BUDGET_EXHAUSTED, "nothing is left")
    with monkeypatch.context() as broke, there.charging(0):
        for one in there.helpers:
            broke.setattr(one, "refuses", spent)
        for _ in range(2):
            refused = there.post("/queries", {**QUERY, "query_id": "c0" * 16})
            assert refused.json()["reason"] == "budget_exhausted"
    with there.charging(1):
        answer = there.post("/queries", {**QUERY, "epsilon": 0.15, "query_id": "c0" * 16})
    assert answer.status_code == 201


def test_a_job_that_trains_on_does_not_change_what_was_asked_of_it(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = [there.of.client.tasks()[0].bundle.task.num_features, 1]
    weights = [dense_network(width, "relu", seed=seed) for seed in (1, 2)]
    server: Any = there.of.client.server
    monkeypatch.setattr(server.measuring, "_export_job", lambda _job, _weights: weights.pop(0))
    asked = {"job": "06", "bins": 10, "epsilon": 0.1, "dataset": DATASET, "query_id": "d0" * 16}
    with there.charging(1):
        first, second = (there.post("/evaluations", asked) for _ in range(2))
    assert first.status_code == 201, first.text
    assert first.json() == second.json()
    with there.charging(0):
        of_others = there.post("/evaluations", {**asked, "weights": "best"})
    assert (of_others.status_code, of_others.json()["reason"]) == (409, "query_changed")
    assert len(weights) == 1


@pytest.mark.parametrize(
    "query_id", ["zz" * 16, "a0", "a0" * 17, 7, None, ["a0" * 16], "a0" * 16 + "\n"], ids=range(7)
)
def test_what_is_no_id_is_a_problem(there: There, query_id: Any) -> None:
    with there.charging(0):
        answer = there.post("/queries", {**QUERY, "query_id": query_id})
    assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_task")
