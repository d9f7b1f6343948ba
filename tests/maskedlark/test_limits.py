"""The limits of the protocol, by value: tests use them by name, so none of those notices that one changed.

Browsers, ad servers and helpers of other versions keep them: one that changes is a change of the protocol.
"""

from importlib import import_module

import pytest

LIMITS: dict[str, dict[str, object]] = {
    "maskedlark.numbers.field": {
        "MODULUS": 2**64 - 2**32 + 1,
        "ELEMENT_BYTES": 8,
        "MAX_SIGNED": 2**63 - 2**31,
    },
    "maskedlark.privacy.adaptive_clip": {"BOUND_BYTES": 8, "STEPS_PER_OCTAVE": 16, "LEAST_BOUND": 2.0**-12},
    "maskedlark.privacy.charge": {
        "GAUSSIAN_SLACK": 1 - 2.0**-17,
        "LAPLACE_SLACK": 2.0**-22,
        "NOISE_MULTIPLIERS": (2.0**-20, 2.0**20),
    },
    "maskedlark.privacy.noise": {"MIN_SCALE": 1_024, "FEATURE_RANGE": 255, "FEATURE_FRAC_BITS": 16},
    "maskedlark.privacy.noise_search": {"SEARCH_PRECISION": 1.01},
    "maskedlark.privacy.rejection_strips": {"COLUMNS": 256, "WEIGHT_BITS": 32, "SURE_BITS": 31},
    "maskedlark.privacy.sample_size": {"EXPOSURE": 2.0**-46, "_UNDER_K": 2.0**-50, "_OVER": 32},
    "maskedlark.privacy.samplers": {"MAX_SCALE": 2**48},
    "maskedlark.releases.counting": {"VERSION": 1, "COUNT_UNITS": 65_536, "MAX_MULTIPLIER": 4e6},
    "maskedlark.releases.evaluation": {"ROWS": 2, "MAX_BINS": 10_000, "UNITS": 2**20, "_MAX_MULTIPLIER": 4e6},
    "maskedlark.releases.job": {"VERSION": 1},
    "maskedlark.releases.query": {"MAX_NUMBERS": 2**20, "MAX_DOMAIN": 2**20, "THRESHOLD_RATIO": 4.0},
    "maskedlark.releases.update": {
        "VERSION": 1,
        "MAX_ROUNDS": 1_000_000,
        "MAX_PHASES": 256,
        "MAX_INSTRUCTIONS": 16_384,
    },
    "maskedlark.reports.helper_pair_key": {"SAMPLING_DENOMINATOR": 2**32, "VIEW_TAG_BYTES": 16},
    "maskedlark.reports.input_shares": {"SHARE_VERSION": 1, "PROVEN_SHARE_VERSION": 2},
    "maskedlark.reports.measurement": {
        "MAX_VALUES": 64,
        "MAX_KEYS": 16,
        "MAX_BUCKETS": 1_024,
        "MAX_MAGNITUDE": 2**31 - 1,
        "MAX_CODE": 2**32 - 1,
        "MAX_CATEGORIES": 2**22,
        "_MOST_DIGITS": 100,
    },
    "maskedlark.reports.origin": {"MAX_ORIGIN": 200, "_LAST_PORT": 65_535},
    "maskedlark.reports.proofs.shape": {
        "POINTS": 3,
        "MAX_POLYNOMIAL_BITS": 64,
        "COMMITMENT_BYTES": 32,
        "BLIND_BYTES": 32,
        "EXTRA_NODES": 5,
    },
    "maskedlark.reports.share_seed": {"SEED_BYTES": 32},
    "maskedlark.reports.task": {
        "VERSION": 1,
        "MAX_FEATURES": 65_536,
        "MAX_CANDIDATES": 1_024,
        "REPORT_ID_BYTES": 16,
        "REPORT_DIGEST_BYTES": 16,
        "MAX_DATASET_SIZE": 33_000_000,
        "VIEW_NONCE_BYTES": 16,
        "MIN_CLIP_NORM": 2.0**-10,
        "MAX_CLIP_NORM": 2.0**10,
    },
    "maskedlark.reports.updates": {
        "MAX_PARAMETERS": 130_000,
        "UPDATE_VERSION": 1,
        "NONCE_BYTES": 16,
        "ROUND_ID_BYTES": 32,
        "SEED_ROLE": 0,
    },
}


@pytest.mark.parametrize("module", LIMITS, ids=lambda module: "in_" + module.replace(".", "_") + "_py")
def test_a_limit_of_the_protocol_stays_what_it_is(module: str) -> None:
    found = import_module(module)
    assert {name: getattr(found, name) for name in LIMITS[module]} == LIMITS[module]
