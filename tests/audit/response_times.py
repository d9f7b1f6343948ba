"""Does the time of a helper's answer show what one record holds?

The attack of an ad server that makes a model for it: sixteen Gathers of rows of tables, one on the other,
whose gradient once took a walk over a record's bytes. Of twenty records nineteen are constant, and the last
one is constant in one dataset and the worst for such a walk in the other. Rounds of both are asked for in
turn over gRPC, and what each answer takes is noted, as processor time: a machine that others use too would
hide a difference on its clock. The AUC says how well one time tells the datasets apart: .5 is not at all.

A build of the helper with the old loops must be seen. What caches and a processor's own guesses show is not
what is tried: see docs/explanation/threat-model.md.
"""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.reports.report import Example
from tests.audit.part import Part
from tests.audit.site import open_site
from tests.helper.gradient.exact import old_loops
from tests.helper.gradient.exact.graphs import GraphBuilder

RECORDS: Final = 20
NUM_FEATURES: Final = 2_048
GATHERS: Final = 16
TURNS: Final = 60
TRIES: Final = 3
"""Rounds of which the shortest counts: a machine that others use too only ever adds time."""
DEVIATIONS_AT_MOST: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the times of a helper's answers showed.

    Attributes:
        auc: Of telling the worst record by one time: of a pair of times, how often the larger is its.
        medians_ms: Of the times with the constant record and with the worst one.
        bound: How far from .5 the AUC may be.
    """

    auc: float
    medians_ms: tuple[float, float]
    bound: float

    @property
    def is_silent(self) -> bool:
        """Whether nothing shows."""
        return abs(self.auc - 0.5) <= self.bound


def constant(seed: int) -> Part:
    """The part on helpers as they are."""
    found = examine(seed)
    return Part(
        claims={"response_time_silent": found.is_silent},
        figures={
            "response_time_auc": found.auc,
            "response_time_medians_ms": list(found.medians_ms),
            "response_time_auc_bound": found.bound,
        },
    )


def walking(seed: int) -> Part:
    """The part on helpers whose loops walk to the first equal byte: the audit must see it."""
    found = examine(seed, is_old=True)
    return Part(
        claims={"walking_loops_caught": not found.is_silent and found.auc > 0.5},
        figures={"response_time_auc_of_walking_loops": found.auc},
    )


def examine(seed: int, *, is_old: bool = False, turns: int = TURNS) -> Finding:
    """Times of one helper's answers, of both datasets in turn; `is_old` is a build with the old loops."""
    rounds = turns * TRIES
    with (
        open_site(
            seed=seed,
            model=stacked_gathers(),
            num_features=NUM_FEATURES,
            max_dataset_size=100,
            mechanism="none",
        ) as site,
        old_loops.in_place() if is_old else nullcontext(),
    ):
        sent = site.initial_weights
        specs = [site.start(site.seal(batch), rounds=rounds, noise_multiplier=0.0)[0] for batch in _batches()]
        times = np.zeros((2, rounds))
        for index in range(rounds):
            for which in (0, 1) if index % 2 else (1, 0):
                began = time.process_time()
                site.clients[0].run_round(specs[which], index, sent, site.model.num_parameters)
                times[which, index] = time.process_time() - began
    return judge(times)


def judge(times: NDArray[np.float64]) -> Finding:
    """Of times (2, rounds), the shortest of every few."""
    shortest = times.reshape(2, -1, TRIES).min(axis=2)
    above = shortest[1][:, None] - shortest[0][None, :]
    turns = shortest.shape[1]
    return Finding(
        auc=float((above > 0).mean() + (above == 0).mean() / 2),
        medians_ms=(float(1e3 * np.median(shortest[0])), float(1e3 * np.median(shortest[1]))),
        bound=DEVIATIONS_AT_MOST * sqrt((2 * turns + 1) / (12 * turns**2)),
    )


def stacked_gathers() -> bytes:
    """A model that reads a row of each of many tables for every feature."""
    graph = GraphBuilder(NUM_FEATURES, seed=0)
    indices = graph.node("Cast", graph.node("Mul", "x", graph.tensor(np.array(256, np.float32))), to=7)
    total, *rows = (graph.node("Gather", graph.weight(256, 1, scale=0.5), indices) for _ in range(GATHERS))
    for row in rows:
        total = graph.node("Add", total, row)
    flat = graph.node("Flatten", total, axis=1)
    return graph.encode(graph.gemm(flat, NUM_FEATURES, 1), 1)


def _batches() -> tuple[list[Example], list[Example]]:
    """Twenty constant records; nineteen and one whose bytes all come before the one that it ends in."""
    same = Example(features=np.full(NUM_FEATURES, 7, np.uint8), label=0)
    worst = Example(features=np.minimum(np.arange(NUM_FEATURES), 255).astype(np.uint8), label=0)
    return [same] * RECORDS, [same] * (RECORDS - 1) + [worst]
