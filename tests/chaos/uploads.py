"""Browsers that upload without pause to an ad server that may be away.

They fetch the task's bundle, seal, and send until acknowledged.
"""

import time
from collections import deque
from contextlib import AbstractContextManager
from itertools import count
from threading import Event
from typing import Final

import httpx

from docs.tutorial.fleet import Fleet
from maskedlark import canonical
from maskedlark.randomness import seeded
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.upload import Report, Sealer
from maskedlark.rpc.wire import report_to_message
from protos import report_pb2
from tests.builders import examples
from tests.chaos.watch import running

BATCH: Final = 20
_BUNDLES: Final = 3
_FETCH_EVERY: Final = 5
_PAUSE_S: Final = 0.05
_GIVE_UP_S: Final = 120.0


class Uploads:
    """One stream of batches.

    Some are sealed with the bundle of now, some with one that was fetched before the latest rotations.

    Attributes:
        acknowledged: Ids of the reports that the ad server said to hold.
        key_ids: Of both helpers, the HPKE keys that acknowledged reports were sealed to.
    """

    def __init__(self, fleet: Fleet, task: str) -> None:
        """Upload to the ad server of a fleet, wherever it listens at the moment.

        `task` is the id in hexadecimal.
        """
        self.acknowledged: set[bytes] = set()
        self.key_ids: tuple[set[int], set[int]] = (set(), set())
        self._fleet = fleet
        self._task = task
        self._sealers: deque[Sealer] = deque(maxlen=_BUNDLES)
        self._stop = Event()

    def running(self) -> AbstractContextManager[None]:
        """Upload while the block runs; the batch under way is acknowledged before it ends."""
        return running(self._run, "uploads", self._stop)

    def door(self) -> str:
        """Where the next request goes: the address of an intake over HTTP."""
        return self._fleet.http

    def bundle(self) -> TaskBundle:
        """What a browser fetches now."""
        answer = httpx.get(f"http://{self.door()}/v1/tasks/{self._task}", timeout=10)
        return canonical.decode(TaskBundle, answer.raise_for_status().content)

    def send(self, batch: list[Report]) -> bool:
        """Send a batch once; whether all of it was acknowledged."""
        body = report_pb2.ReportBatch(reports=map(report_to_message, batch)).SerializeToString()
        try:
            answer = httpx.post(f"http://{self.door()}/v1/reports/batch", content=body, timeout=10)
        except httpx.HTTPError:
            return False
        if answer.status_code != 200 or answer.json()["accepted"] + answer.json()["duplicates"] != len(batch):
            return False
        self.acknowledged.update(report.report_id for report in batch)
        for role, key_ids in enumerate(self.key_ids):
            key_ids.update(report.shares[role].key_id for report in batch)
        return True

    def _run(self) -> None:
        for number in count():
            if number % _FETCH_EVERY == 0:
                self._fetch()
            self._deliver(self._seal(number))
            if self._stop.wait(_PAUSE_S):
                return

    def _deliver(self, batch: list[Report]) -> None:
        until = time.monotonic() + _GIVE_UP_S
        while not self.send(batch):
            if time.monotonic() > until:
                raise AssertionError(f"no batch was acknowledged for {_GIVE_UP_S:.0f} s")
            time.sleep(0.1)

    def _fetch(self) -> None:
        """A newer bundle, if the ad server answers; without any, ask until it does."""
        while True:
            try:
                bundle = self.bundle()
            except httpx.HTTPError:
                if self._sealers:
                    return
                time.sleep(0.1)
            else:
                self._sealers.append(Sealer(bundle, now=time.time()))
                return

    def _seal(self, number: int) -> list[Report]:
        """A batch of which another one is never made."""
        sealer, randomness = self._sealers[number % len(self._sealers)], seeded(number, "uploads")
        return [
            sealer.report(example, unix_s=time.time(), randomness=randomness)
            for example in examples(sealer.task, BATCH, randomness)
        ]
