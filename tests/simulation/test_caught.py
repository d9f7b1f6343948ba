"""Proof that the simulation would notice: for each invariant a product that is broken in one place."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert

from adserver.peers import query_both
from adserver.peers.client import HelperClient
from adserver.store.queries import QueryStore
from adserver.store.reports import ReportStore
from helper.ledger import ledger as helper_ledger
from helper.ledger.ledger import Ledger
from helper.ledger.manifests import add_manifest
from helper.ledger.records import Manifest, StoredQuery
from helper.ledger.schema import DATASETS
from helper.ledger.witness import Witness
from helper.releases import jobs as helper_jobs
from helper.releases import queries as helper_queries
from helper.releases.rounds import RunningJob
from helper.trust.key_ring import Ring
from maskedlark.errors import JobReason, JobRefused
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.job import JobSpec
from maskedlark.releases.query import QuerySpec
from maskedlark.releases.release import combine
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.sealing import OpeningKey
from maskedlark.reports.upload import Report
from tests.simulation.operators import Restored
from tests.simulation.planted import (
    answers_queries_anew,
    answers_queries_for_nothing,
    charges_queries_twice,
    never,
)
from tests.simulation.running import Verdict, run_seed, shrunk
from tests.simulation.steps import Scale, restored_in

_SMALL = Scale(reports=60, noisy_reports=20, datasets=2, jobs_each=2, queries_each=2, spread_s=60.0)
_SEEDS = 30

_add_query, _add_reports = Ledger.add_query, ReportStore.add
_answer_round, _run_query = RunningJob.answer, HelperClient.run_query
_opening_keys = Ring.opening_keys


def _charges_a_round_after_its_release(*_: Any, **__: Any) -> bool:
    """The answer leaves first, and then the process dies."""
    return True


def _acknowledges_before_it_stores(store: ReportStore, accepted: Sequence[Report]) -> int:
    """Two of three reports never reach the disk."""
    return _add_reports(store, [report for report in accepted if report.report_id[0] % 3 == 0]) or len(
        accepted
    )


def _asks_each_helper_another_query(
    client: HelperClient, query: QuerySpec | DiscoverySpec, codes: bytes, length: int, **how: Any
) -> Any:
    asked = (
        replace(query, noise_multiplier=query.noise_multiplier * 2, where=())
        if client.address == "south"
        else query
    )
    return _run_query(client, asked, codes, length, **how)


def _refuses_at_one_helper(
    ledger: Ledger, stored: StoredQuery, check: Callable[..., None], *actor: Any
) -> bool:
    """What it has budget for."""
    if "south" in str(ledger._engine.url):
        raise JobRefused(JobReason.BUDGET_EXHAUSTED, "it does not fit, they say")
    return _add_query(ledger, stored, check, *actor)


def _adds_one(*shares: Any) -> Any:
    return combine(*shares) + (1 << 30)


def _refuses_a_round_for_its_budget(job: RunningJob, served: Any, round_index: int, *rest: Any) -> bytes:
    """After it has charged it."""
    answer = _answer_round(job, served, round_index, *rest)
    if served.task.mechanism is not Mechanism.NONE:
        raise JobRefused(JobReason.BUDGET_EXHAUSTED, "too late")
    return answer


def _opens_with_the_newest_key_only(ring: Ring, now: float) -> tuple[OpeningKey, ...]:
    return _opening_keys(ring, now)[-1:]


def _slots_from_transcript(
    job: JobSpec, pair: PairKey, round_index: int, round_transcript: bytes, count: int
) -> Any:
    """And so from weights, which the ad server chooses."""
    if job.epoch_steps is None:
        return pair.sample(round_transcript, count, job.sampling_numerator)
    epoch, step = divmod(round_index, job.epoch_steps)
    return pair.slots(round_transcript, epoch, count, job.epoch_steps) == np.uint64(step)


def _forgets(store: QueryStore, query_id: bytes, _: Any) -> None:
    """What was asked, where its answer is to be kept."""
    store.remove(query_id)


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "said"),
    [
        pytest.param(
            Ledger,
            "add_round",
            _charges_a_round_after_its_release,
            "before it was charged",
            id="round charged late",
        ),
        pytest.param(
            ReportStore,
            "add",
            _acknowledges_before_it_stores,
            "was acknowledged and is lost",
            id="report lost",
        ),
        pytest.param(
            Ledger, "add_query", answers_queries_for_nothing, "before it was charged", id="query for nothing"
        ),
        pytest.param(Ledger, "add_query", charges_queries_twice, "charged query", id="query charged twice"),
        pytest.param(
            HelperClient,
            "run_query",
            _asks_each_helper_another_query,
            "two queries under the id",
            id="two queries of one id",
        ),
        pytest.param(query_both, "combine", _adds_one, "was read as", id="wrong result"),
        pytest.param(QueryStore, "keep_answer", _forgets, "is forgotten", id="query forgotten"),
        pytest.param(
            Ledger, "add_query", _refuses_at_one_helper, "whose budget holds it", id="query refused"
        ),
        pytest.param(
            RunningJob,
            "answer",
            _refuses_a_round_for_its_budget,
            "although it was refused for its budget",
            id="refusal charged",
        ),
        pytest.param(
            JobSpec, "draw_sample", _slots_from_transcript, "take part in rounds", id="slots ground"
        ),
        pytest.param(HelperClient, "close_job", lambda *_: 0, "keeps budget for job", id="job left open"),
        pytest.param(
            Ring,
            "opening_keys",
            _opens_with_the_newest_key_only,
            "did not open report",
            id="key expired early",
        ),
    ],
)
def test_a_broken_product_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, mutant: Callable[..., Any], said: str
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    assert _caught(said)


def test_a_helper_that_checks_no_budget_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_jobs, "check_fits", never)
    monkeypatch.setattr(helper_queries, "check_fits", never)
    assert _caught("has spent", first=10)


def test_a_helper_that_forgets_its_answer_to_a_query_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "query", never)
    monkeypatch.setattr(Ledger, "add_query", answers_queries_anew)
    monkeypatch.setattr(helper_ledger, "check_whole", never)  # which would not let the helper start again
    assert _caught("gave two answers to query", first=14)


@pytest.mark.parametrize("what", Restored)
def test_a_helper_that_serves_from_an_old_ledger_is_caught(
    monkeypatch: pytest.MonkeyPatch, what: Restored
) -> None:
    monkeypatch.setattr(Witness, "check", never)
    seeds = [seed for seed in range(60) if restored_in(seed) is what]
    assert any(
        "although its past was brought back" in one for seed in seeds for one in run_seed(seed).violations
    )


@pytest.mark.long
def test_a_helper_that_forgets_used_reports_is_caught_and_the_failing_run_is_made_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes a person who gives up a dataset that one helper has committed and the other has not."""

    def add_dataset(
        ledger: Ledger,
        dataset_id: bytes,
        task_id: bytes,
        report_ids: Sequence[bytes],
        manifest: Manifest,
        *_: object,
    ) -> None:
        with ledger._engine.begin() as connection:
            connection.execute(
                insert(DATASETS).values(dataset_id=dataset_id, task_id=task_id, size=len(report_ids))
            )
            add_manifest(connection, dataset_id, manifest)

    monkeypatch.setattr(Ledger, "add_dataset", add_dataset)
    monkeypatch.setattr(Ledger, "find_used", lambda *_: set())
    monkeypatch.setattr(helper_ledger, "check_whole", never)  # which would not let the helper start again
    scale = Scale(reports=30, noisy_reports=0, datasets=3, jobs_each=0, queries_each=0, spread_s=40.0)
    failing = next(
        verdict
        for verdict in (run_seed(seed, scale=scale) for seed in range(100))
        if _says(verdict, "2 times")
    )
    small = shrunk(failing, most_runs=40, scale=scale)
    assert _says(small, "2 times")
    assert len(small.happened) < len(failing.happened) / 2
    assert {name.split()[0] for name in small.happened} >= {"upload", "seal", "abandon"}
    assert run_seed(failing.seed, only=frozenset(small.happened), scale=scale) == small


def _caught(said: str, first: int = 0) -> bool:
    """Whether some small run reports a violation in these words; `first` is a seed that is known to."""
    return any(_says(run_seed(seed, scale=_SMALL), said) for seed in range(first, first + _SEEDS))


def _says(verdict: Verdict, said: str) -> bool:
    return any(said in one for one in verdict.violations)
