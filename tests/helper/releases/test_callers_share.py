"""Whatever is computed for a caller is computed within its share of the helper's memory and turns."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helper.ledger.records import key_of
from helper.releases.jobs import RunningJobs
from helper.releases.query_cost import evaluation_cost, query_cost
from helper.releases.round_cost import round_cost
from helper.releases.work_quota import WorkQuota
from maskedlark import canonical
from maskedlark.interrupt import never
from maskedlark.randomness import seeded
from maskedlark.releases.counting import Condition
from maskedlark.releases.job import JobSpec
from maskedlark.releases.update import UpdateSpec
from tests.helper.parties import ASKED, MODEL, WEIGHTS, Scene, fake_engine_for
from tests.helper.releases.test_evaluation_at_helpers import spec_of
from tests.helper.releases.test_queries import Shop
from tests.helper.update_parties import UpdateScene
from tests.maskedlark.query_specs import discovery

HOST = "ads.example"


class Shares:
    """What was taken, and what is held now, of a quota."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[tuple[str, int]] = []
        self.read: list[str] = []
        self.held: list[str] = []

        @contextmanager
        def taken(_: WorkQuota, host: str, num_bytes: int, interrupt: Any = never) -> Iterator[None]:
            self.taken.append((host, num_bytes))
            with self._holding("memory"):
                yield

        @contextmanager
        def reading(_: WorkQuota, host: str) -> Iterator[None]:
            self.read.append(host)
            with self._holding("reading"):
                yield

        monkeypatch.setattr(WorkQuota, "taken", taken)
        monkeypatch.setattr(WorkQuota, "reading", reading)

    @contextmanager
    def _holding(self, what: str) -> Iterator[None]:
        self.held.append(what)
        try:
            yield
        finally:
            self.held.remove(what)


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> Shares:
    return Shares(monkeypatch)


def test_a_job_is_read_alone_and_its_rounds_take_what_they_are_estimated_at(
    tmp_path: Path, shares: Shares
) -> None:
    scene, made = Scene(tmp_path), list[list[str]]()

    def engine_for(*arguments: Any) -> Any:
        made.append(list(shares.held))
        return fake_engine_for(*arguments)

    scene.restart(engine_for=engine_for)
    spec = scene.job(scene.seal(30))
    scene.cores[0].jobs.start(canonical.encode(spec), MODEL, ASKED)
    scene.restart(engine_for=engine_for)
    job = scene.cores[0].jobs.at_work(key_of(spec), None)
    assert (made, shares.read, shares.taken) == ([["reading"]] * 2, [HOST] * 2, [])
    job.answer(0, WEIGHTS, ASKED)
    computation = job.running.computation
    cost = round_cost(computation.model, computation.engine, records=30, candidates=scene.task.num_candidates)
    assert shares.taken == [(HOST, cost.num_bytes)]
    job.answer(0, WEIGHTS, ASKED)  # what was answered costs nothing
    assert len(shares.taken) == 1
    assert shares.held == []


def test_queries_take_what_they_are_estimated_at(tmp_path: Path, shares: Shares) -> None:
    shop = Shop(tmp_path)
    asked = shop.query()
    where = (Condition(key="place", code=1),)
    found = discovery(shop, dataset_id=shop.dataset, query_id=b"d" * 16, keys=("campaign",), where=where)
    for spec in (asked, found):
        shop.cores[0].queries.answer(spec, lambda _: b"", ASKED)
    wanted = [(HOST, query_cost(shop.task, spec, 30).num_bytes) for spec in (asked, found)]
    assert (shares.taken, shares.read, shares.held) == (wanted, [], [])


def test_an_evaluation_is_read_alone_and_takes_what_it_is_estimated_at(
    tmp_path: Path, shares: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, estimated, parsed = Scene(tmp_path), list[int](), list[list[str]]()

    def cost(*given: Any, **how: Any) -> Any:
        estimated.append(evaluation_cost(*given, **how).num_bytes)
        return evaluation_cost(*given, **how)

    def bytes_of(*_: Any) -> int:
        parsed.append(list(shares.held))
        return 12_345

    monkeypatch.setattr("helper.releases.queries.evaluation_cost", cost)
    monkeypatch.setattr("helper.releases.queries.scoring_bytes", bytes_of)
    spec = spec_of(scene, scene.seal(30), MODEL)
    scene.cores[0].queries.answer(spec, lambda _: MODEL, ASKED)
    assert (shares.taken, shares.read, shares.held) == ([(HOST, estimated[0])], [HOST], [])
    assert estimated[0] > 12_345
    assert parsed == [["reading"]]


def test_a_sum_of_updates_takes_what_it_is_estimated_at(tmp_path: Path, shares: Shares) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    spec = UpdateSpec(dataset_id=scene.seal_round(one, scene.sealed(one, scene.vectors(4))), round=one)
    scene.cores[0].queries.answer(spec, lambda _: b"", ASKED)
    assert shares.taken == [(HOST, query_cost(scene.task, spec, 4).num_bytes)]


@pytest.mark.parametrize(("kept", "noise"), [(1_001, 500), (2**29, 2**28), (2**40, 2**28)])
def test_noise_drawn_ahead_takes_half_as_much_as_models_and_a_bound_at_most(kept: int, noise: int) -> None:
    nothing: Any = SimpleNamespace()
    jobs = RunningJobs(
        tasks=nothing,
        datasets=nothing,
        executor=nothing,
        ledger=nothing,
        engine_for=nothing,
        randomness=seeded(1),
        noise_key=nothing,
        quota=nothing,
        kept_bytes=kept,
    )
    assert (jobs._running.capacity_bytes, jobs._noise._ahead.capacity_bytes) == (kept, noise)


def test_a_closed_job_leaves_no_noise_and_no_attempt_in_memory(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mechanism="gaussian", epsilon=100.0, collusion_epsilon=1000.0)
    spec: JobSpec = scene.job(scene.seal(), noise_multiplier=5.0)
    scene.start(spec)
    jobs = scene.cores[0].jobs
    jobs._attempts.begin(key_of(spec), 0)
    assert list(jobs._noise._ahead._kept) == list(jobs._running._kept) == [key_of(spec)]
    jobs.close(canonical.encode(spec), None)
    assert not jobs._noise._ahead._kept
    assert not jobs._running._kept
    assert not jobs._attempts._begun
