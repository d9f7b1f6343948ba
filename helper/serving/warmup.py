"""What a helper does before it serves: every loop compiled, and this machine's arithmetic checked.

Compiled loops are kept (`helper.gradient.exact.kernels.compiled`), and `make setup`, images and `helper
warmup` make them: where they are found, this takes a second or two. Where they are not, helpers of one
machine that start together compile one after the other, and all but the first find everything.
"""

import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from helper.datasets.proofs import fast_residues
from helper.gradient.exact.kernels.compiled import (
    ProcessorKind,
    cache_folder,
    complete,
    processor_kind,
    runnable,
)
from helper.gradient.exact.products.fastest import measure
from helper.gradient.exact.self_check import SelfCheckFailed, self_check
from maskedlark.errors import InvalidSetting
from maskedlark.interrupt import Interrupt, never
from maskedlark.numbers.field import random_vector
from maskedlark.randomness import seeded
from maskedlark.reports.measurement import Measurement, Value
from maskedlark.reports.proofs.check import ProofTable, residues
from maskedlark.reports.proofs.shape import POINTS, proof_shape
from maskedlark.runtime.durable_file import private

_LOG: Final = logging.getLogger(__name__)
_LOCK: Final = "compiling"
_WARM_UP: Final = f"from {__name__} import warm_up; warm_up()"
_PROOF_ROWS: Final = 4
# With which a proof has parts of every kind.
_MEASURED: Final = Measurement(
    min_cell_count=1, values=(Value(name="bucketed", low=-3, high=9, bucket_starts=(-3, 0, 5)),)
)


def warm_up(interrupt: Interrupt = never) -> None:
    """Compile what is not compiled yet, and check everything. Called by a helper before it serves.

    Args:
        interrupt: Called every few seconds at least, but while another process compiles.

    Raises:
        InvalidSetting: this machine's arithmetic does not give the protocol's golden vectors.
    """
    folder = cache_folder()
    done = complete(folder)
    if done.exists():
        _check(interrupt)
        return
    _LOG.info("compiling the exact path's loops, once on this machine: this takes up to a minute")
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_folder(folder):
        _check(interrupt)
        # Last: a process that is killed leaves no mark, and the next one makes what is missing.
        done.touch()


def warm_up_for_others() -> None:
    """Do it here, and for each other kind of processor whose machine code this one can run.

    Raises:
        InvalidSetting: as `warm_up` raises it.
    """
    warm_up()
    for kind in runnable():
        if kind.name != processor_kind():
            _warm_up_as(kind)


def _warm_up_as(kind: ProcessorKind) -> None:
    """Compile in a new process, because numba compiles for one kind of processor in each."""
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", _WARM_UP], env={**os.environ, **kind.environment}, check=False
    )
    if done.returncode:
        raise InvalidSetting(f"this machine must not serve: its arithmetic with {kind.name} is not correct")


def _check(interrupt: Interrupt) -> None:
    """Reproduce the golden vectors on every backend, and the residues of proofs.

    It also loads or compiles the loops, and finds the faster products, so that no job waits for that.
    """
    try:
        self_check(interrupt)
        _check_proofs()
        measure()
    except SelfCheckFailed as error:
        raise InvalidSetting(f"this machine must not serve: {error}") from None


def _check_proofs() -> None:
    """Compare the compiled residues of proofs with the plain ones, at both roles.

    Raises:
        SelfCheckFailed: they differ.
    """
    randomness, shape = seeded(0, "warm-up"), proof_shape(3, _MEASURED)
    elements, openings, points = (
        random_vector(_PROOF_ROWS * width, randomness).reshape(_PROOF_ROWS, width)
        for width in (shape.num_elements, shape.num_openings, POINTS)
    )
    digests = np.zeros((_PROOF_ROWS, 32), np.uint8)
    table = ProofTable(openings=openings, others=digests, blinds=digests, elements=elements)
    for role in (0, 1):
        compiled, plain = (one(shape, role, table, points) for one in (fast_residues, residues))
        if not np.array_equal(compiled, plain):
            raise SelfCheckFailed("the compiled residues of a proof differ from the plain ones")


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder: another process that wants to compile into it waits."""
    with open(folder / _LOCK, "wb", opener=private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
