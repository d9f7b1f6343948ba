"""Federated rounds while everything goes wrong; and products with one planted bug, which are caught."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, update

from adserver.store.rounds import DeviceRoundState, RoundStore
from adserver.store.schema import update_rounds
from helper.datasets.datasets import Datasets
from helper.datasets.segments import SegmentSlice
from helper.datasets.vault import Vault
from helper.ledger import ledger as helper_ledger
from helper.ledger.ledger import Ledger
from helper.ledger.records import StoredQuery
from helper.ledger.schema import QUERIES
from maskedlark.canonical import encode
from maskedlark.interrupt import Interrupt
from tests.simulation.update_rounds import run_seed

_add_query, _add, _round_records = Ledger.add_query, RoundStore.add, Datasets.round_records
_SEEDS = 8


@pytest.mark.long
def test_devices_and_deaths_break_nothing(tmp_path: Path) -> None:
    kinds: Counter[str] = Counter()
    deaths = 0
    for seed in range(_SEEDS):
        told = run_seed(seed, tmp_path / str(seed))
        assert not told.violations, f"seed {seed}: {told.violations}"
        kinds.update(told.kinds)
        deaths += told.deaths
    assert set(kinds) == {"on time", "twice", "late", "foreign", "gone", "forged"}
    assert deaths > 2 * _SEEDS


def test_a_seed_replays_identically(tmp_path: Path) -> None:
    assert run_seed(3, tmp_path / "a") == run_seed(3, tmp_path / "b")


def _charges_nothing(_ledger: Ledger, _stored: StoredQuery, _check: Any) -> bool:
    return True


def _charges_twice(ledger: Ledger, stored: StoredQuery, check: Any) -> bool:
    is_new = _add_query(ledger, stored, check)
    if is_new:
        spec = stored.spec
        row = {"task_id": spec.task_id, "query_id": spec.query_id[::-1], "dataset_id": spec.dataset_id}
        with ledger._engine.begin() as connection:
            connection.execute(
                insert(QUERIES).values(
                    row | {"kind": spec.kind, "spec": encode(spec), "answer": stored.answer}
                )
            )
    return is_new


def _answers_anew(ledger: Ledger, stored: StoredQuery, check: Any) -> bool:
    with ledger._engine.begin() as connection:
        connection.execute(delete(QUERIES).where(QUERIES.c.query_id == stored.spec.query_id))
    return _add_query(ledger, stored, check)


def _acknowledges_and_forgets(store: RoundStore, report: Any) -> bool:
    """One of three updates never reaches the disk."""
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


def _does_nothing(*_: Any, **__: Any) -> None:
    return None


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param((Ledger, "add_query", _charges_nothing, "charged 0 times"), id="charges nothing"),
        pytest.param((Ledger, "add_query", _charges_twice, "charged 2 times"), id="charges twice"),
        pytest.param((RoundStore, "add", _acknowledges_and_forgets, "are lost at helper"), id="update lost"),
        pytest.param(
            (RoundStore, "add", _takes_late_ones, "round_over was acknowledged"), id="late one taken"
        ),
        pytest.param((Datasets, "round_records", _leaves_one_out, "has not the bits"), id="one left out"),
    ],
)
def test_a_planted_bug_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: tuple[Any, str, Any, str]
) -> None:
    """Where a helper's ledger loses or gains rows it would not start again: that check is off."""
    monkeypatch.setattr(helper_ledger, "check_whole", _does_nothing)
    owner, name, mutant, said = bug
    monkeypatch.setattr(owner, name, mutant)
    assert _caught(tmp_path, said)


def test_a_helper_that_answers_anew_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_ledger, "check_whole", _does_nothing)
    monkeypatch.setattr(Ledger, "query", _does_nothing)
    monkeypatch.setattr(Ledger, "add_query", _answers_anew)
    monkeypatch.setattr(helper_ledger, "drop_manifest", _does_nothing)
    monkeypatch.setattr(Vault, "forget", _does_nothing)
    assert _caught(tmp_path, "two answers")


def _caught(folder: Path, said: str) -> bool:
    """Whether some seed breaks something, in these words."""
    return any(said in one for seed in range(_SEEDS) for one in run_seed(seed, folder / str(seed)).violations)
