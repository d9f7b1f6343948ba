"""The trainings of a rehearsal, in this process or in several others, and how far they are.

with RehearsalPool(workers=2, progress=show) as pool:
    pool.total = STEPS * len(trainings)
    outcomes = pool.run(RehearsalTraining.train, trainings)
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from typing import Final, Self, TypeVar

from adserver.training.rehearsal_training import OnSteps, RehearsalTraining

OnProgress = Callable[[int, int], None]
"""Gets how many steps of trainings are done, and all there are."""
_POLL_S: Final = 0.5
_ResultT = TypeVar("_ResultT")
# Of a worker process: the number of steps, given when it starts, since it travels no other way
_SHARED: "Final[list[Synchronized[int]]]" = []


class RehearsalPool:
    """Runs trainings and shows their steps. The results do not depend on the number of processes.

    Attributes:
        total: The steps of all trainings, as far as is known.
    """

    def __init__(self, *, workers: int, progress: OnProgress) -> None:
        self.total = 0
        self._progress = progress
        spawn = get_context("spawn")
        self._done: Synchronized[int] = spawn.Value("q", 0)
        self._executor = None
        if workers > 1:  # one worker is this process
            self._executor = ProcessPoolExecutor(
                workers, mp_context=spawn, initializer=_share_done, initargs=(self._done,)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    @property
    def done(self) -> int:
        """The steps that are done."""
        return self._done.value

    def show(self) -> None:
        """Show how far the trainings are."""
        self._progress(self.done, self.total)

    def run(
        self,
        train: Callable[[RehearsalTraining, OnSteps], _ResultT],
        trainings: Sequence[RehearsalTraining],
    ) -> list[_ResultT]:
        """Return the result of each training, in order."""
        self.show()
        if self._executor is None:
            return [train(one, self._count) for one in trainings]
        futures = [self._executor.submit(_run_in_worker, train, one) for one in trainings]
        left = set(futures)
        while left:
            finished, left = wait(left, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for one in finished:
                one.result()  # raises at once what a training raised
            self.show()
        return [one.result() for one in futures]

    def _count(self, steps: int) -> None:
        _add(self._done, steps)
        self.show()


def _add(done: "Synchronized[int]", steps: int) -> None:
    with done.get_lock():
        done.value += steps


def _share_done(done: "Synchronized[int]") -> None:
    _SHARED.append(done)


def _run_in_worker(
    train: Callable[[RehearsalTraining, OnSteps], _ResultT], training: RehearsalTraining
) -> _ResultT:
    (done,) = _SHARED
    return train(training, lambda steps: _add(done, steps))
