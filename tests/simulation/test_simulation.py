"""Ten thousand operations while everything goes wrong; and proof that the simulation would notice."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import insert

from adserver.reports import ReportStore
from helper.ledger import Ledger, StoredRound
from helper.schema import DATASETS
from maskedlark.upload import Report
from tests.simulation.faults import Rates
from tests.simulation.running import run_seed, shrunk
from tests.simulation.shrinking import shrink
from tests.simulation.steps import Scale

OPERATIONS = 10_000
_SMALL = Scale(reports=60, datasets=2, jobs_each=1, spread_s=60.0)
_NEVER = Rates(message=0.0, crash=0.0)


def test_ten_thousand_operations_under_faults_break_nothing() -> None:
    done, seed, kinds = 0, 0, set()
    while done < OPERATIONS:
        verdict = run_seed(seed)
        assert not verdict.violations, f"seed {seed}: {verdict.violations}; python -m tests.simulation --seed {seed} makes it small"
        done += verdict.operations
        kinds |= {name.rpartition("=")[2] for name in verdict.happened if "=" in name}
        seed += 1
    assert kinds == {"drop_request", "drop_reply", "duplicate", "late", "cut", "crash"}


def test_a_seed_replays_identically() -> None:
    assert run_seed(11, scale=_SMALL) == run_seed(11, scale=_SMALL)
    assert run_seed(11, scale=_SMALL).digest != run_seed(12, scale=_SMALL).digest


def test_without_faults_every_report_is_accepted_at_once_and_every_job_ends_as_in_the_clear() -> None:
    verdict = run_seed(1, rates=_NEVER, scale=_SMALL)
    assert not verdict.violations
    assert not any("=" in name for name in verdict.happened)


def test_shrinking_finds_the_two_events_that_fail_together() -> None:
    happened = [f"event {number}" for number in range(100)]
    assert shrink(happened, lambda only: {"event 17", "event 64"} <= only) == ["event 17", "event 64"]


def _charged_after_the_release(ledger: Ledger, job_id: bytes, round_index: int, answered: StoredRound) -> bool:
    """The answer leaves first, and then the process dies."""
    return True


_really_add = ReportStore.add


def _acknowledged_before_it_is_stored(store: ReportStore, accepted: Sequence[Report]) -> int:
    """Two of three reports never reach the disk."""
    return _really_add(store, [report for report in accepted if report.report_id[0] % 3 == 0]) or len(accepted)


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "said"),
    [
        (Ledger, "add_round", _charged_after_the_release, "before it was charged"),
        (ReportStore, "add", _acknowledged_before_it_is_stored, "was acknowledged and is lost"),
    ],
)
def test_a_broken_product_is_caught(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, mutant: Callable[..., Any], said: str) -> None:
    monkeypatch.setattr(owner, name, mutant)
    assert any(said in one for seed in range(6) for one in run_seed(seed, scale=_SMALL).violations)


def test_a_helper_that_forgets_used_reports_is_caught_and_the_failing_run_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a person who gives up a dataset that one helper has committed and the other has not."""

    def add_dataset(ledger: Ledger, dataset_id: bytes, task_id: bytes, report_ids: Sequence[bytes]) -> None:
        with ledger._engine.begin() as connection:
            connection.execute(insert(DATASETS).values(dataset_id=dataset_id, task_id=task_id, size=len(report_ids)))

    monkeypatch.setattr(Ledger, "add_dataset", add_dataset)
    monkeypatch.setattr(Ledger, "used_among", lambda *_: set())
    scale = Scale(reports=60, datasets=3, jobs_each=0, spread_s=60.0)
    failing = next(verdict for verdict in (run_seed(seed, scale=scale) for seed in range(100)) if verdict.violations)
    assert "2 times" in failing.violations[0]
    small = shrunk(failing, most_runs=50, scale=scale)
    assert "2 times" in small.violations[0]
    assert len(small.happened) < len(failing.happened) / 4
    assert {name.split()[0] for name in small.happened} >= {"upload", "seal", "abandon"}
    assert run_seed(failing.seed, only=frozenset(small.happened), scale=scale) == small
