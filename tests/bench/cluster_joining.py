"""Workers of another cluster, or with other numerics: many in this process, some on real raylets."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from helper.executors import worker_service
from helper.executors.fleet import JoinRefused
from helper.executors.orders import SOFTWARE
from helper.executors.worker import SegmentWorker
from helper.trust.cluster_secrets import WORKERS
from tests.helper.executors.ray_machines import LOOPBACK, Machines, until
from tests.helper.executors.served_workers import called, certified, served, tls_of

if TYPE_CHECKING:  # it imports ray, before `ray_machines` could say how that authenticates
    from helper.executors.ray_fleet import RayFleet

OF_ANOTHER = "has no certificate of this cluster"
OTHER_NUMERICS = "has other numerics"
_PRETENDS = """
import sys
if any("default_worker" in one for one in sys.orig_argv):
    from helper.executors import worker_service
    worker_service.SOFTWARE = bytes(32)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """How many workers of each kind were refused."""

    of_another_cluster: int
    other_numerics: int


def refused_here(folder: Path, count: int) -> Refused:
    """So many of each kind, served in this process: each time one of another cluster, and one of this one."""
    tls, found = tls_of(certified(folder / "own")), list[str]()
    for number in range(count):
        other = tls_of(certified(folder / f"other-{number}"))
        for files, software in ((other, SOFTWARE), (tls, b"%32d" % number)):
            with (
                patch.object(worker_service, "SOFTWARE", software),
                served(SegmentWorker(0), files) as address,
                called(address, tls) as client,
            ):
                found += _refusal(client.greet)
    return Refused(
        of_another_cluster=sum(OF_ANOTHER in one for one in found),
        other_numerics=sum(OTHER_NUMERICS in one for one in found),
    )


def _refusal(greet: Callable[[], None]) -> list[str]:
    """Why a worker is refused, if it is."""
    try:
        greet()
    except JoinRefused as error:
        return [str(error)]
    return []


def refused_machines(made: Machines, fleet: "RayFleet", count: int) -> Refused:
    """So many real raylets of each kind; refused are those that the head's log gives the reason of."""
    other, numerics = certified(made.folder / "another-cluster", LOOPBACK), made.folder / "other-numerics"
    numerics.mkdir(exist_ok=True)
    (numerics / "sitecustomize.py").write_text(_PRETENDS)
    path = os.pathsep.join([str(numerics), str(Path(__file__).parents[2])])
    before, nodes = len(fleet.refused), []
    with _told() as lines:
        for _ in range(count):
            nodes += [made.add(certificates=other / WORKERS), made.add(environment={"PYTHONPATH": path})]
        until(lambda: len(fleet.refused) - before == len(nodes) or bool(fleet.workers()))
        told = " ".join(lines)
    for node in nodes:
        made.remove(node)
    return Refused(of_another_cluster=told.count(OF_ANOTHER), other_numerics=told.count(OTHER_NUMERICS))


@contextmanager
def _told() -> Iterator[list[str]]:
    """What the head's log says of workers meanwhile."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log, kept = logging.getLogger("helper.executors.ray_fleet"), Kept()
    log.addHandler(kept)
    try:
        yield lines
    finally:
        log.removeHandler(kept)
