"""Sealing a dataset: the part of the client that `adserver dataset seal` loads, without the others."""

import os
import time

from adserver.client.connection import Connection
from adserver.collecting.sealing import DatasetSealer
from adserver.store.datasets import Dataset
from adserver.store.tasks import TaskStore
from adserver.views.printing import sealing_bars


class Sealing(Connection):
    """Makes datasets of the reports that wait."""

    def seal(
        self,
        task: str = "",
        *,
        max_reports: int | None = None,
        allow_small: bool = False,
        progress: bool = True,
    ) -> Dataset:
        """Make the waiting reports of a task a dataset at both helpers.

        Args:
            task: The start of its id; not needed if there is only one.
            max_reports: Take at most so many, the oldest first.
            allow_small: Also seal fewer than the task's min_batch_size, of which every round will be noise.
            progress: Show how far the helpers are.

        Raises:
            JobRefused, InvalidTask: too few reports wait, or a helper refuses.
            HelperUnavailable: a helper does not answer; call it again.
        """
        if self._far is not None:
            return self._far.seal(task, max_reports=max_reports, allow_small=allow_small)
        engine = self._engine
        with sealing_bars(is_shown=progress) as show:
            sealer = DatasetSealer(
                engine=engine,
                helpers=self._helpers,
                task=TaskStore(self._engine).find(task).bundle.task,
                clock=time.time,
                randomness=os.urandom,
                progress=show,
                backoff=self._backoff,
            )
            return sealer.seal(max_reports=max_reports, is_small_allowed=allow_small)
