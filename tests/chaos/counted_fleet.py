"""A fleet whose helpers write down in which rounds each record takes part, over all kills and restarts."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from docs.tutorial.fleet import HELPERS, Fleet
from maskedlark.releases.job import JobSpec
from maskedlark.releases.round import Evaluated
from tests.simulation.participation import Participation

_SCRIPT: Final = Path(__file__).with_name("counted_helper.py")


@dataclass(frozen=True, slots=True)
class Written(Participation):
    """Participation that outlives its process.

    Attributes:
        file: Each computed round adds a line.
    """

    file: Path = Path()

    def _note(self, job: JobSpec, role: int, round_index: int, evaluated: Evaluated) -> None:
        if job.epoch_steps is None:
            return
        line = {
            "role": role,
            "job": job.job_id.hex(),
            "steps": job.epoch_steps,
            "round": round_index,
            "records": np.flatnonzero(evaluated.counts).tolist(),
        }
        with self.file.open("ab", buffering=0) as stream:
            stream.write(json.dumps(line).encode() + b"\n")


def read(lines: Iterable[bytes]) -> Participation:
    """What helpers wrote down; a line that a kill cut off is left out."""
    counted = Participation()
    for line in lines:
        if not line.endswith(b"}\n"):
            continue
        one: dict[str, Any] = json.loads(line)
        role, job, index = one["role"], bytes.fromhex(one["job"]), one["round"]
        counted.computed.append((role, job, index))
        for record in one["records"]:
            counted.rounds[role, job, index // one["steps"], record].add(index)
    return counted


class CountedFleet(Fleet):
    """See the module."""

    def participation(self) -> Participation:
        """What both helpers wrote down so far."""
        files = [self._file(party) for party in HELPERS]
        return read(b"".join(file.read_bytes() for file in files if file.exists()).splitlines(keepends=True))

    def _program(self, party: str, program: str) -> list[str]:
        usual = super()._program(party, program)
        return [sys.executable, str(_SCRIPT), str(self._file(party))] if party in HELPERS else usual

    def _file(self, party: str) -> Path:
        return self.folder / f"{party}.participation"
