"""Opens report shares on all cores: HPKE holds Python's lock, so threads would share one core.

Small chunks are opened in the calling process, and so is everything until there was more of it than the
workers cost to start. Workers are spawned, hold the keys in memory only, and end with their parent, however
it ends.
"""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.reduction import ForkingPickler
from typing import Final, Self

from maskedlark.errors import HelperUnavailable
from maskedlark.reports.dataset import PreparedShares, ShareColumns, ShareForHelper, ShareOpener
from maskedlark.reports.helper_pair_key import ViewKey
from maskedlark.reports.sealing import OpeningKey
from maskedlark.runtime import gc_tuning
from maskedlark.runtime.hardening import forbid_core_files

MIN_CHUNK: Final = 64
"""Fewer shares than this are not worth the way to another process."""
MAX_CHUNK: Final = 1_024
"""So many go to a process at once: it opens them while the next are on their way."""
WORTH_WORKERS: Final = 1 << 15
"""Shares that take about as much processor time to open, 1.5 to 2 s, as two workers take to start."""

# the two secrets that an opener holds go to these processes through their own pipes, and through nothing else
ForkingPickler.register(OpeningKey, OpeningKey.for_own_process)
ForkingPickler.register(ViewKey, ViewKey.for_own_process)


class OpeningPool:
    """Worker processes that open shares. One per helper; closed with it."""

    def __init__(self, workers: int | None = None, *, worth_workers: int = WORTH_WORKERS) -> None:
        """Prepare for `workers` processes; by default one a core.

        They start with the share after `worth_workers`.
        """
        self._to_open_here = worth_workers
        self._workers = workers or os.cpu_count() or 1
        self._executor = self._start()
        self._replacing = threading.Lock()

    def open(self, opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        """Run `opener.open(incoming)` on all cores, without looking for repeats between the parts.

        Raises:
            HelperUnavailable: a worker was killed; the caller may ask again.
        """
        if self._workers == 1 or len(incoming) < 2 * MIN_CHUNK:
            return opener.open(incoming)
        if self._to_open_here > 0:  # two threads may pass here at once: then a few more are opened here
            self._to_open_here -= len(incoming)
            return opener.open(incoming)
        size = max(MIN_CHUNK, min(MAX_CHUNK, -(-len(incoming) // self._workers)))
        executor = self._executor
        try:
            parts: list[Future[PreparedShares]] = [
                executor.submit(opener.open_columns, ShareColumns.of(incoming[start : start + size]))
                for start in range(0, len(incoming), size)
            ]
            return PreparedShares.join([part.result() for part in parts])
        except BrokenProcessPool:
            self._replace(executor)
            raise HelperUnavailable("a process that opens shares was lost; ask again") from None

    def _replace(self, broken: ProcessPoolExecutor) -> None:
        """Start anew, once, however many callers met the broken one."""
        with self._replacing:
            if self._executor is broken:
                self._executor = self._start()
        broken.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> ProcessPoolExecutor:
        # Not forked: locks that gRPC's threads hold at that moment would stay locked in the child.
        return ProcessPoolExecutor(
            self._workers, mp_context=get_context("spawn"), initializer=_end_with_parent
        )

    def close(self) -> None:
        """End the workers."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end_with_parent() -> None:
    """End with the parent: a spawned worker waits on a queue that outlives a killed parent.

    Its memory is as secret as its parent's.
    """
    forbid_core_files()
    gc_tuning.serving()
    threading.Thread(target=_watch_parent, daemon=True, name="end-with-parent").start()


def _watch_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # the process: `sys.exit` would end this thread alone
