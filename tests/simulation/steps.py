"""What is going to happen in a run, made of the seed alone.

A list of steps, each with a name by which it can be left out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from maskedlark.reports.task import Task
from tests.simulation.browsers import Browsers
from tests.simulation.desk import Desk
from tests.simulation.operators import Operators, Restored
from tests.simulation.parties import HELPERS, WORKERS

_EVERYONE: Final = (*HELPERS, *WORKERS, "ingest", "desk")
_RESTORED_EVERY: Final = 10
_EXPIRY_CHANCE: Final = 0.6
_SEALED_AGAIN: Final = 3
_SEALED_AFTER_S: Final = 7.0
_OVERLAPS_S: Final = (20, 600, 600)
"""How long replaced keys open on: now and then for less than reports wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much happens in a run.

    Attributes:
        reports: How many browsers have something to send to the exact task.
        noisy_reports: And to the noisy one.
        datasets: How often a dataset of the exact task is sealed, evenly spread.
        jobs_each: Jobs for each dataset.
        queries_each: Queries over each dataset.
        spread_s: Over how long.
    """

    reports: int = 240
    noisy_reports: int = 40
    datasets: int = 4
    jobs_each: int = 2
    queries_each: int = 2
    spread_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something that a person or a browser does."""

    name: str
    at_s: float
    act: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who does things."""

    browsers: Browsers
    desk: Desk
    operators: Operators


def restored_in(seed: int) -> Restored | None:
    """What of a helper is brought back in the run of a seed: in one of ten something is."""
    if seed % _RESTORED_EVERY != _RESTORED_EVERY - 1:
        return None
    return Restored.LEDGER if seed // _RESTORED_EVERY % 2 else Restored.FOLDER


def steps(cast: Cast, seed: int, scale: Scale) -> list[Step]:
    """Everything that is going to be done."""
    stream = Random(f"{seed} steps")
    exact, noisy = (bundle.task for bundle in cast.desk.fleet.bundles.all)
    return [
        *_uploads(cast, exact, scale.reports, 0.8 * scale.spread_s, stream),
        *_uploads(cast, noisy, scale.noisy_reports, 0.3 * scale.spread_s, stream),
        *_exact_work(cast, exact, scale, stream),
        *_noisy_work(cast, noisy, scale, stream),
        *_trouble(cast, scale, stream),
        *_expiry(cast, exact, scale, stream),
        *_new_keys(cast, scale, stream),
        *_restoring(cast, scale, stream, restored_in(seed)),
    ]


def _uploads(cast: Cast, task: Task, count: int, until_s: float, stream: Random) -> Iterator[Step]:
    for number in range(count):
        visit = partial(cast.browsers.visit, number, task, count)
        yield Step(name=f"upload {task.name} {number}", at_s=stream.uniform(0, until_s), act=visit)


def _exact_work(cast: Cast, task: Task, scale: Scale, stream: Random) -> Iterator[Step]:
    """Datasets one after the other, with jobs and queries over each; now and then people lose patience."""
    desk = cast.desk
    for number in range(scale.datasets):
        at_s = (number + 1) * 0.85 * scale.spread_s / scale.datasets
        for attempt in range(_SEALED_AGAIN):
            yield _typed(
                desk,
                f"seal {number}.{attempt}",
                at_s + _SEALED_AFTER_S * attempt,
                partial(desk.seal_due, task, number),
            )
        for job in range(scale.jobs_each):
            submit = partial(desk.submit, task, number * scale.jobs_each + job)
            yield _typed(desk, f"submit {number}.{job}", at_s + stream.uniform(1, 25), submit)
        for query in range(scale.queries_each):
            ask = partial(desk.ask, task, number * scale.queries_each + query)
            yield _typed(desk, f"ask {number}.{query}", at_s + stream.uniform(1, 25), ask)
        impatience = (
            ("cancel", 0.25, desk.cancel),
            ("abandon", 0.5, partial(desk.abandon, task)),
            ("ask again", 0.5, desk.ask_again),
        )
        for what, chance, act in impatience:
            if stream.random() < chance:
                yield _typed(desk, f"{what} {number}", at_s + stream.uniform(0, 20), act)


def _noisy_work(cast: Cast, task: Task, scale: Scale, stream: Random) -> Iterator[Step]:
    """One dataset, and more jobs and queries than its budget holds."""
    desk, at_s = cast.desk, 0.5 * scale.spread_s
    for attempt in range(_SEALED_AGAIN):
        yield _typed(
            desk, f"seal noisy {attempt}", at_s + _SEALED_AFTER_S * attempt, partial(desk.seal_due, task, 0)
        )
    for number in range(2 * scale.jobs_each):
        yield _typed(
            desk, f"submit noisy {number}", at_s + stream.uniform(1, 40), partial(desk.submit, task, number)
        )
    for number in range(2 * scale.queries_each):
        yield _typed(
            desk, f"ask noisy {number}", at_s + stream.uniform(1, 40), partial(desk.ask, task, number)
        )
    yield _typed(desk, "resume", at_s + stream.uniform(20, 50), desk.resume)


def _trouble(cast: Cast, scale: Scale, stream: Random) -> Iterator[Step]:
    operators, spread_s = cast.operators, scale.spread_s
    for number in range(6):
        act = partial(operators.kill, stream.choice(_EVERYONE))
        yield Step(name=f"kill {number}", at_s=stream.uniform(0, spread_s), act=act)
    for number in range(3):
        act = partial(operators.skew, stream.choice(_EVERYONE), stream.uniform(-40, 40))
        yield Step(name=f"skew {number}", at_s=stream.uniform(0, spread_s), act=act)
    for number in range(2):
        act = partial(operators.pause, stream.choice(WORKERS), stream.uniform(5, 40))
        yield Step(name=f"pause {number}", at_s=stream.uniform(0, spread_s), act=act)


def _expiry(cast: Cast, task: Task, scale: Scale, stream: Random) -> Iterator[Step]:
    if stream.random() < _EXPIRY_CHANCE:
        yield Step(
            name="expire",
            at_s=stream.uniform(0.85, 1) * scale.spread_s,
            act=partial(cast.operators.expire, task),
        )


def _new_keys(cast: Cast, scale: Scale, stream: Random) -> Iterator[Step]:
    for number in range(3):
        who, overlap_s = stream.choice(HELPERS), stream.choice(_OVERLAPS_S)
        act = partial(cast.operators.rotate, who, active_in_s=stream.randint(0, 30), overlap_s=overlap_s)
        yield Step(name=f"rotate {number}", at_s=stream.uniform(0, 0.8 * scale.spread_s), act=act)


def _restoring(cast: Cast, scale: Scale, stream: Random, what: Restored | None) -> Iterator[Step]:
    if what is None:
        return
    who, at_s = stream.choice(HELPERS), scale.spread_s * stream.uniform(0.1, 0.8)
    yield Step(name="back up", at_s=at_s, act=partial(cast.operators.back_up, who))
    for attempt in range(3):
        later_s = at_s + (attempt + 1) * stream.uniform(2, 15)
        yield Step(
            name=f"restore {attempt}", at_s=later_s, act=partial(cast.operators.restore_once, who, what)
        )


def _typed(desk: Desk, name: str, at_s: float, command: Callable[..., str]) -> Step:
    return Step(name=name, at_s=at_s, act=partial(desk.type, command))
