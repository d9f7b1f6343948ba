"""Noise drawn ahead: the right distribution's, each vector handed out once, whoever asks and whatever
fails."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from helper.ledger.ledger import Ledger
from helper.ledger.records import ReleaseKey, StoredRound
from helper.releases import noise_cache
from helper.releases.noise_cache import NoiseCache, NoiseOrder
from maskedlark import canonical
from maskedlark.audit_log import THIS_SERVICE, Actor
from maskedlark.interrupt import Interrupt, never
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import Stream, seeded
from tests.helper.parties import MODEL, Scene
from tests.patience import HANGS_S

JOB, OTHER_JOB = (ReleaseKey(b"t" * 32, job_id) for job_id in (b"j" * 16, b"o" * 16))
NORTH, SOUTH = "ads.example", "evil.example"
ORDER = NoiseOrder(mechanism=Mechanism.GAUSSIAN, scale=1 << 32, count=100)


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bytes of every vector that this test's caches draw, in the order in which they are finished."""
    drawn: list[bytes] = []
    made_here: set[NoiseCache] = set()
    init, draw = NoiseCache.__init__, NoiseCache._draw

    def known(cache: NoiseCache, *given: Any, **named: Any) -> None:
        made_here.add(cache)
        init(cache, *given, **named)

    def recorded(cache: NoiseCache, *given: Any) -> Any:
        vector = draw(cache, *given)
        if cache in made_here:  # one of a test before may still draw, in its own thread
            drawn.append(vector.tobytes())
        return vector

    monkeypatch.setattr(NoiseCache, "__init__", known)
    monkeypatch.setattr(NoiseCache, "_draw", recorded)
    return drawn


def test_what_was_drawn_ahead_is_handed_out_once(draws: list[bytes]) -> None:
    shelf = NoiseCache(seeded(1))
    shelf.prepare(JOB, ORDER, NORTH)
    first, second = shelf.take(JOB, ORDER), shelf.take(JOB, ORDER)
    assert sorted(draws) == sorted([first.tobytes(), second.tobytes()])
    assert first.tolist() != second.tolist()


def test_the_vector_is_the_samplers_under_fresh_key_bytes() -> None:
    shelf = NoiseCache(seeded(1))
    shelf.prepare(JOB, ORDER, NORTH)
    expected = noise_vector(Mechanism.GAUSSIAN, 1 << 32, 100, Stream(seeded(1)(32)))
    assert shelf.take(JOB, ORDER).tolist() == expected.tolist()


def test_preparing_twice_draws_once(draws: list[bytes]) -> None:
    shelf = NoiseCache(seeded(1))
    shelf.prepare(JOB, ORDER, NORTH)
    shelf.prepare(JOB, ORDER, NORTH)
    shelf.take(JOB, ORDER)
    assert len(draws) == 1


@pytest.mark.parametrize("other", [NoiseOrder(mechanism=Mechanism.LAPLACE, scale=1 << 32, count=100),
                                   NoiseOrder(mechanism=Mechanism.GAUSSIAN, scale=1 << 33, count=100),
                                   NoiseOrder(mechanism=Mechanism.GAUSSIAN, scale=1 << 32, count=101),
                                   ])  # fmt: skip
def test_noise_of_another_order_is_thrown_away(other: NoiseOrder, draws: list[bytes]) -> None:
    shelf = NoiseCache(seeded(1))
    shelf.prepare(JOB, ORDER, NORTH)
    got = shelf.take(JOB, other)
    assert len(got) == other.count
    assert shelf.take(JOB, ORDER).tobytes() == draws[-1]  # not the first, which is gone


def test_noise_of_another_job_is_not_taken() -> None:
    shelf = NoiseCache(seeded(1))
    shelf.prepare(JOB, ORDER, NORTH)
    shelf.prepare(OTHER_JOB, ORDER, NORTH)
    assert shelf.take(JOB, ORDER).tolist() != shelf.take(OTHER_JOB, ORDER).tolist()


def test_many_threads_never_get_the_same_vector() -> None:
    shelf = NoiseCache(seeded(1))

    def rounds(_: int) -> list[bytes]:
        taken = []
        for _ in range(25):
            shelf.prepare(JOB, ORDER, NORTH)
            taken.append(shelf.take(JOB, ORDER).tobytes())
        return taken

    with ThreadPoolExecutor(8) as threads:
        taken = [one for many in threads.map(rounds, range(8)) for one in many]
    assert len(set(taken)) == len(taken) == 200


def test_past_its_capacity_the_oldest_is_forgotten_and_drawn_when_asked_for() -> None:
    shelf = NoiseCache(seeded(1), capacity_bytes=8 * ORDER.count)
    shelf.prepare(JOB, ORDER, NORTH)
    shelf.prepare(OTHER_JOB, ORDER, NORTH)
    assert shelf.take(JOB, ORDER).tolist() != shelf.take(OTHER_JOB, ORDER).tolist()


def test_one_ad_servers_jobs_do_not_push_out_anothers_noise(draws: list[bytes]) -> None:
    shelf = NoiseCache(seeded(1), capacity_bytes=3 * 8 * ORDER.count)
    shelf.prepare(JOB, ORDER, NORTH)
    for number in range(9):
        shelf.prepare(ReleaseKey(b"e" * 32, bytes([number]) * 16), ORDER, SOUTH)
    ready = shelf.take(JOB, ORDER)
    assert ready.tobytes() == draws[0]


def test_noise_that_has_no_room_is_not_drawn_ahead(draws: list[bytes]) -> None:
    shelf = NoiseCache(seeded(1), capacity_bytes=8 * ORDER.count - 1)
    shelf.prepare(JOB, ORDER, NORTH)
    vector = shelf.take(JOB, ORDER)
    assert (len(vector), len(draws)) == (ORDER.count, 1)


def test_noise_that_waits_behind_another_jobs_is_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = Event()

    def slow_when_long(mechanism: Mechanism, scale: int, count: int, randomness: Any) -> Any:
        assert count != 7 or may_go_on.wait(HANGS_S)
        return noise_vector(mechanism, scale, count, randomness)

    monkeypatch.setattr(noise_cache, "noise_vector", slow_when_long)
    shelf = NoiseCache(seeded(1))
    shelf.prepare(OTHER_JOB, NoiseOrder(mechanism=Mechanism.GAUSSIAN, scale=1 << 32, count=7), NORTH)
    shelf.prepare(JOB, ORDER, NORTH)
    assert len(shelf.take(JOB, ORDER)) == ORDER.count
    may_go_on.set()


def test_noise_that_is_pushed_out_before_it_is_begun_is_not_drawn(
    draws: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, submitted = Event(), []
    shelf = NoiseCache(seeded(1), capacity_bytes=8 * ORDER.count)
    shelf._drawing.submit(may_go_on.wait, HANGS_S)  # all others wait behind this one
    submit = shelf._drawing.submit

    def recorded(*given: Any) -> Any:
        submitted.append(submit(*given))
        return submitted[-1]

    monkeypatch.setattr(shelf._drawing, "submit", recorded)
    shelf.prepare(JOB, ORDER, NORTH)
    shelf.prepare(OTHER_JOB, ORDER, NORTH)  # there is room for one
    assert [one.cancelled() for one in submitted] == [True, False]
    may_go_on.set()
    submitted[1].result(HANGS_S)
    assert len(draws) == 1


# --- in a helper


def noisy_scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, mechanism="gaussian", epsilon=16.0, collusion_epsilon=1000.0)


def start(scene: Scene) -> Any:
    spec = scene.job(scene.seal(), noise_multiplier=5.0)
    scene.start(spec)
    return spec


def test_the_noise_of_a_round_is_drawn_before_it_is_asked_for(tmp_path: Path, draws: list[bytes]) -> None:
    scene = noisy_scene(tmp_path)
    spec = start(scene)
    scene.run(spec, 0)
    scene.run(spec, 1)
    for core in scene.cores:
        core.jobs.close(canonical.encode(spec), None)
    assert len(draws) >= 4
    assert len(set(draws)) == len(draws)


def test_whoever_has_gone_waits_neither_for_noise_that_is_being_drawn_nor_for_what_was_to_be_drawn_now() -> (
    None
):
    class Gone(Exception):
        pass

    def gone() -> None:
        raise Gone

    order = NoiseOrder(mechanism=Mechanism.GAUSSIAN, scale=1 << 20, count=100_000)
    draws, may_end = Event(), Event()

    def held(count: int) -> bytes:
        draws.set()
        assert may_end.wait(HANGS_S)
        return bytes(count)

    shelf = NoiseCache(held)
    shelf.prepare(JOB, order, NORTH)
    assert draws.wait(HANGS_S)
    with pytest.raises(Gone):
        shelf.take(JOB, order, gone)
    may_end.set()
    with pytest.raises(Gone):
        shelf.take(ReleaseKey(b"another task", JOB.release_id), order, gone)


def test_a_round_that_failed_does_not_hand_its_noise_to_the_next_attempt(tmp_path: Path) -> None:
    """Two answers with the same noise would differ by their sums alone."""
    taken: list[list[int]] = []

    class Recorded(NoiseCache):
        def take(self, job: ReleaseKey, order: NoiseOrder, interrupt: Interrupt = never) -> Any:
            vector = super().take(job, order, interrupt)
            taken.append(vector.tolist())
            return vector

    class FailsOnce(Ledger):
        has_failed = False

        def add_round(
            self,
            job: ReleaseKey,
            round_index: int,
            answered: StoredRound,
            actor: Actor = THIS_SERVICE,
            *,
            numerics: bytes = b"",
        ) -> bool:
            if not self.has_failed:
                self.has_failed = True
                raise OSError("the disk is full")
            return super().add_round(job, round_index, answered, actor, numerics=numerics)

    scene = noisy_scene(tmp_path)
    spec = start(scene)
    scene.restart(ledger_type=FailsOnce)
    scene.cores[0].jobs._noise = Recorded(seeded(3))
    with pytest.raises(OSError, match="full"):
        scene.answer(0, spec, 0)
    answer = scene.answer(0, spec, 0)
    assert scene.answer(0, spec, 0) == answer  # a retry takes none
    assert len(taken) == 2
    assert taken[0] != taken[1]


def test_noise_is_written_nowhere(tmp_path: Path, draws: list[bytes]) -> None:
    scene = noisy_scene(tmp_path)
    spec = start(scene)
    for index in range(3):
        scene.run(spec, index)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert MODEL in stored  # the ledger's model: the search would find what is there
    assert len(draws) >= 6
    assert not any(one in stored or one[:16] in stored for one in draws)
