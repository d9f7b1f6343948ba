"""Federated rounds on the simulated network; and products with one planted bug, which are caught there."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from sqlalchemy import update

from adserver.store.rounds import DeviceRoundState, RoundStore
from adserver.store.schema import update_rounds
from helper.datasets.datasets import Datasets
from helper.datasets.segments import SegmentSlice
from helper.datasets.vault import Vault
from helper.ledger import ledger as helper_ledger
from helper.ledger.ledger import Ledger
from maskedlark.errors import ReportReason
from maskedlark.interrupt import Interrupt
from tests.simulation.crowd_world import ROUNDS, run_crowd_seed
from tests.simulation.failpoints import expected, of_updates
from tests.simulation.faults import Rates
from tests.simulation.planted import (
    answers_queries_anew,
    answers_queries_for_nothing,
    charges_queries_twice,
    never,
)
from tests.simulation.running import Verdict

_SEEDS = (2, 3)
_add, _round_records = RoundStore.add, Datasets.round_records


@cache
def _of_seed(seed: int) -> Verdict:
    return run_crowd_seed(seed)


def test_federated_rounds_under_faults_break_nothing() -> None:
    refused: Counter[str] = Counter()
    forged = 0
    kinds: set[str] = set()
    for seed in _SEEDS:
        verdict = _of_seed(seed)
        assert not verdict.violations, f"seed {seed}: {verdict.violations}"
        assert verdict.rounds_summed >= 2 * ROUNDS
        refused.update(verdict.updates_refused)
        forged += verdict.updates_forged
        kinds |= {name.rpartition("=")[2] for name in verdict.happened if "=" in name}
    assert {"drop_request", "drop_reply", "duplicate", "late", "crash"} <= kinds
    assert refused[ReportReason.ROUND_OVER] > 0
    assert refused[ReportReason.UNKNOWN_ROUND] > 0
    assert forged > 0


def test_a_seed_of_federated_rounds_replays_identically() -> None:
    assert run_crowd_seed(3) == _of_seed(3)


def test_without_faults_all_rounds_are_summed_and_nothing_is_wrong() -> None:
    verdict = run_crowd_seed(1, rates=Rates(message=0.0, crash=0.0))
    assert not verdict.violations
    assert verdict.rounds_summed == 3 * ROUNDS


def test_the_points_to_crash_at_are_those_that_the_code_has() -> None:
    files = {"Vault.commit", "write checkpoint.npz"}
    names = {point.partition(":")[0] for point in of_updates()}
    shared = {point.partition(":")[0] for point in expected()}
    assert {name for name in names - files if not name.startswith("RoundStore.")} <= shared


def _acknowledges_and_forgets(store: RoundStore, report: Any) -> bool:
    """One of three updates never reaches the disk: a round that waits for all devices never ends."""
    return report.report_id[0] % 3 == 0 or _add(store, report)


def _takes_late_ones(store: RoundStore, report: Any) -> bool:
    """Whatever is over is open for a moment."""
    one = update_rounds.c.round_id == report.round_id
    with store._engine.begin() as connection:
        before = connection.execute(update_rounds.select().where(one)).one_or_none()
        connection.execute(update(update_rounds).where(one).values(state=DeviceRoundState.OPEN))
    try:
        return _add(store, report)
    finally:
        if before is not None:
            with store._engine.begin() as connection:
                connection.execute(update(update_rounds).where(one).values(state=before.state))


def _leaves_one_out(datasets: Datasets, one: Any, of_dataset: bytes) -> Any:
    """Both helpers alike, so that nothing but the model tells."""
    records = _round_records(datasets, one, of_dataset)

    def pieces(interrupt: Interrupt) -> Iterator[SegmentSlice]:
        for piece in records.pieces(interrupt):
            yield SegmentSlice(ranks=piece.ranks[:-1], rows=piece.rows.rows(slice(0, -1)))

    return replace(records, pieces=pieces)


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "said"),
    [
        pytest.param(
            Ledger, "add_query", answers_queries_for_nothing, "before it was charged", id="charges nothing"
        ),
        pytest.param(
            Ledger, "add_query", charges_queries_twice, "has charged the rounds", id="charges twice"
        ),
        pytest.param(RoundStore, "add", _acknowledges_and_forgets, "not settled", id="update lost"),
        pytest.param(RoundStore, "add", _takes_late_ones, "due was round_over", id="late one taken"),
        pytest.param(Datasets, "round_records", _leaves_one_out, "has not the bits", id="one left out"),
    ],
)
def test_a_planted_bug_is_caught_on_the_network(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, mutant: Any, said: str
) -> None:
    """Where a helper's ledger loses or gains rows it would not start again: that check is off."""
    monkeypatch.setattr(helper_ledger, "check_whole", never)
    monkeypatch.setattr(owner, name, mutant)
    found = run_crowd_seed(3).violations
    assert any(said in one for one in found), found


def test_a_helper_that_answers_anew_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_ledger, "check_whole", never)
    monkeypatch.setattr(Ledger, "query", never)
    monkeypatch.setattr(Ledger, "add_query", answers_queries_anew)
    monkeypatch.setattr(helper_ledger, "drop_manifest", never)  # or the second answer would find no updates
    monkeypatch.setattr(Vault, "forget", never)
    found = run_crowd_seed(7).violations  # in which a helper is asked twice for a round with noise
    assert any("two answers" in one for one in found), found
