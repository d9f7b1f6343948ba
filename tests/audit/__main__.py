"""`make audit`: the claims of docs/explanation/privacy.md, tried on real helpers over gRPC.

The last line is one JSON object.

    python -m tests.audit               a fresh seed, which is printed
    python -m tests.audit --seed 7      that seed again

Bounded: about 20 minutes on two idle cores. Exits with 1 if a claim is broken, or if the audit fails to see
that a deliberately broken build breaks it. Helpers with half of their noise are caught with a probability of
.999 at any seed: `tests/audit/test_audit_bounds.py` computes that for these cases and this number of rounds.
`PARTS` lists the rest of the audit.
"""

import argparse
import json
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Final

from maskedlark.privacy.mechanism import Mechanism
from tests.audit import (
    correlated,
    epochs,
    federated,
    poisoning,
    response_times,
    sample_size,
    single_share,
    slots_hidden,
)
from tests.audit.canary import Case, OfCanary, audit
from tests.audit.part import Examine, Part, figures_of

ROUNDS: Final = 2_000
CONFIDENCE: Final = 0.95
CORES: Final = 2

HONEST: Final = (
    Case(mechanism=Mechanism.LAPLACE, epsilon=1.0),
    Case(mechanism=Mechanism.LAPLACE, epsilon=3.0),
    Case(mechanism=Mechanism.GAUSSIAN, epsilon=2.0),
    Case(mechanism=Mechanism.GAUSSIAN, epsilon=8.0),
    Case(mechanism=Mechanism.LAPLACE, epsilon=3.0, sampling_rate=0.5),
    Case(mechanism=Mechanism.GAUSSIAN, epsilon=8.0, sampling_rate=0.5),
)
HALVED: Final = tuple(replace(case, is_halved=True) for case in HONEST if case.sampling_rate == 1.0)

PARTS: Final[tuple[Examine, ...]] = (
    federated.honest,
    federated.broken,
    epochs.honest,
    epochs.ground,
    correlated.honest,
    correlated.halved,
    correlated.ground,
    sample_size.poisson,
    sample_size.allocation,
    response_times.constant,
    response_times.walking,
    slots_hidden.hidden,
    slots_hidden.shown,
    single_share.blinded,
    single_share.bare,
    poisoning.part,
)
"""What runs beside the canaries: each in a process of its own, the longest first."""


def main() -> int:
    """Audit, print, and say by the exit status whether all is well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=None, help="of all that is drawn; by default a fresh one")
    asked = parser.parse_args().seed
    seed: int = secrets.randbits(32) if asked is None else asked
    sys.stderr.write(f"seed {seed}\n")
    began = time.monotonic()
    cases = (*HONEST, *HALVED)
    # Twice as many findings as cases, and all of them are to hold together.
    one = partial(audit, rounds=ROUNDS, error=(1 - CONFIDENCE) / (2 * len(cases)), seed=seed)
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(part, seed) for part in PARTS]
        canaries = _canaries([finding for both in pool.map(one, cases) for finding in _told(both)])
        parts = [canaries, *(part.result() for part in running)]
    claims = {name: held for part in parts for name, held in part.claims.items()}
    figures = {name: figure for part in parts for name, figure in part.figures.items()}
    result = {**claims, **figures, "seed": seed, "took_s": round(time.monotonic() - began, 1)}
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if all(claims.values()) else 1


def _canaries(findings: list[OfCanary]) -> Part:
    """What the canaries of all cases say."""
    return Part(
        claims={
            "all_under_claim": all(
                finding.shown <= finding.claimed for finding in findings if not finding.case.is_halved
            ),
            "halved_noise_caught": all(
                finding.shown > finding.claimed for finding in findings if _must_be_caught(finding)
            ),
        },
        figures={
            "confidence": CONFIDENCE,
            "rounds_of_each_dataset": ROUNDS,
            "findings": [figures_of(finding) for finding in findings],
        },
    )


def _told(findings: Iterable[OfCanary]) -> Iterator[OfCanary]:
    """The same, each told in words as it comes."""
    for finding in findings:
        sys.stderr.write(f"{_words(finding)}\n")
        yield finding


def _must_be_caught(finding: OfCanary) -> bool:
    """Halved noise, except where the claim leaves a Laplace noise uncounted.

    The ad server alone faces two and is credited one.
    """
    case = finding.case
    return case.is_halved and (finding.adversary != "ad_server" or case.mechanism is Mechanism.GAUSSIAN)


def _words(finding: OfCanary) -> str:
    case = finding.case
    return (
        f"{case.mechanism:<9} epsilon {case.epsilon:g}{' halved' if case.is_halved else '':<7} rate"
        f" {case.sampling_rate:g} {finding.adversary:<21} claimed {finding.claimed:.3f} shown"
        f" {finding.shown:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
