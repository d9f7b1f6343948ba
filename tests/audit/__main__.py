"""`make audit`: the claims of docs/explanation/privacy.md, tried on real helpers over gRPC.

The last line is one JSON object.

Seeded and bounded: 20,000 rounds, a few minutes on two cores. Exits with 1 if a claim is broken, or if the
audit fails to see that a deliberately broken build breaks it.
"""

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

from maskedlark.privacy.noise import Mechanism
from tests.audit import poisoning, single_share
from tests.audit.canary import Case, Finding, audit

SEED: Final = 20_240_607
ROUNDS: Final = 1_000
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


def main() -> int:
    """Audit, print, and say by the exit status whether all is well."""
    began = time.monotonic()
    cases = (*HONEST, *HALVED)
    # Twice as many findings as cases, and all of them are to hold together.
    one = partial(audit, rounds=ROUNDS, error=(1 - CONFIDENCE) / (2 * len(cases)), seed=SEED)
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        blinded, bare = (
            pool.submit(single_share.examine, seed=SEED, is_blinded=is_blinded)
            for is_blinded in (True, False)
        )
        poisoned = pool.submit(poisoning.examine)
        findings = [finding for both in pool.map(one, cases) for finding in both]
        shares, bare_shares = blinded.result(), bare.result()
        poison = poisoned.result()
    for finding in findings:
        sys.stderr.write(f"{_words(finding)}\n")
    result = {
        "all_under_claim": all(
            finding.shown <= finding.claimed for finding in findings if not finding.case.is_halved
        ),
        "halved_noise_caught": all(
            finding.shown > finding.claimed for finding in findings if _must_be_caught(finding)
        ),
        "single_share_uniform": shares.is_uniform,
        "missing_blind_caught": not bare_shares.is_uniform,
        "rare_feature_advantage": shares.advantage,
        "rare_feature_advantage_without_blind": bare_shares.advantage,
        "chi_squares": shares.chi_squares,
        "chi_square_at_most": single_share.CHI_SQUARE_AT_MOST,
        "poison_changes_nothing": poison.is_well,
        "poisoning": asdict(poison),
        "confidence": CONFIDENCE,
        "rounds_of_each_dataset": ROUNDS,
        "findings": [_figures(finding) for finding in findings],
        "seed": SEED,
        "took_s": round(time.monotonic() - began, 1),
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return (
        0
        if all(
            result[claim]
            for claim in (
                "all_under_claim",
                "halved_noise_caught",
                "single_share_uniform",
                "missing_blind_caught",
                "poison_changes_nothing",
            )
        )
        else 1
    )


def _must_be_caught(finding: Finding) -> bool:
    """Halved noise, except where the claim leaves a Laplace noise uncounted.

    The ad server alone faces two and is credited one.
    """
    case = finding.case
    return case.is_halved and (finding.adversary != "ad_server" or case.mechanism is Mechanism.GAUSSIAN)


def _figures(finding: Finding) -> dict[str, Any]:
    figures = asdict(finding)
    return {**figures.pop("case"), **figures}


def _words(finding: Finding) -> str:
    case = finding.case
    return (
        f"{case.mechanism:<9} epsilon {case.epsilon:g}{' halved' if case.is_halved else '':<7} rate {case.sampling_rate:g} "
        f"{finding.adversary:<21} claimed {finding.claimed:.3f} shown {finding.shown:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
