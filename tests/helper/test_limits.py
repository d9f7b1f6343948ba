"""The limits of a helper, by value: tests use them by name, so none of those notices that one changed.

They bound what an ad server may take of a helper, and what it may learn for nothing: the threat model counts
on them.
"""

from fractions import Fraction
from importlib import import_module

import pytest

LIMITS: dict[str, dict[str, object]] = {
    "helper.datasets.datasets": {"HANDLE_BYTES": 16, "OPENED_BYTES": 2**30},
    "helper.datasets.frames": {"SALT_BYTES": 32, "TAG_BYTES": 16},
    "helper.datasets.prefetch_quota": {"MOST_CHUNKS": 30, "MOST_BYTES": 16 * 2**20, "_OF_ROOM": 64},
    "helper.datasets.preparation_cache": {
        "MAX_PREPARED_PER_TASK": 2,
        "MAX_PREPARED": 64,
        "OF_ONE_OWNER": Fraction(3, 4),
        "KEPT_S": 600.0,
        "RETRY_AFTER_S": 5.0,
    },
    "helper.datasets.preparation_quota": {"ON_DISK": 8, "HELD_BYTES": 194},
    "helper.datasets.preparing": {"MAX_CHUNK_BYTES": 4 * 2**20},
    "helper.datasets.segment_writer": {"_PUTS_AT_ONCE": 4, "_NAME_BYTES": 16},
    "helper.datasets.segments": {"SEGMENT_RECORDS": 65_536, "SEGMENT_BYTES": 32 * 2**20},
    "helper.datasets.storage_quota": {"TAG_BYTES": 16},
    "helper.datasets.sweeping": {
        "ORPHAN_S": 86_400.0,
        "EXPIRED_KEPT_S": 604_800.0,
        "EVERY_S": 3_600.0,
        "DROPPED_EVERY_S": 10.0,
    },
    "helper.datasets.updates": {"MOST_COORDINATES": 2**24, "MOST_SHARES": 8_192, "MOST_BYTES": 8 * 2**20},
    "helper.datasets.vault": {"IN_FLIGHT": 3, "_FOLDER_BYTES": 8, "_INTERRUPTED_EVERY_S": 0.1},
    "helper.ledger.budget_left": {"MAX_DATASETS": 200, "SCRAPE_S": 1.0},
    "helper.ledger.ledger": {"MAX_JOBS": 1_000, "_BATCH": 10_000},
    "helper.ledger.manifests": {"_LOOKUP_BATCH": 500},
    "helper.ledger.release_history": {"_PAGE": 1_000},
    "helper.ledger.round_state": {"KEPT_ANSWERS": 2},
    "helper.ledger.rows": {"_KEPT_QUERIES": 16_384},
    "helper.ledger.schema": {"SCHEMA_VERSION": 1},
    "helper.releases.attempts": {"MAX_UNCHARGED": 3, "_INTERRUPTED_EVERY_S": 0.1},
    "helper.releases.jobs": {"_A_JOB": 2**20, "_A_NODE": 8_192},
    "helper.releases.noise_cache": {"CAPACITY_BYTES": 2**28, "_INTERRUPTED_EVERY_S": 0.1},
    "helper.releases.query_cost": {
        "_NS": 1e-9,
        "_LOOK_NS": 20.0,
        "_SORT_NS": 400.0,
        "_NUMBER_NS": 400.0,
        "_COORDINATE_NS": 12.0,
        "_EDGE_NS": 40_000.0,
        "_NUMBER_BYTES": 80,
        "_COLUMN_BYTES": 40,
        "_SCORED_BYTES": 24,
    },
    "helper.releases.release_grid": {"DEFAULT_STEP_MS": 10},
    "helper.releases.round_cost": {
        "_THROUGHOUT_BYTES": 16,
        "_RELEASE_BYTES": 32,
        "_LABEL_BYTES": 12,
        "_ANY_ROUND": 4 * 2**20,
    },
    "helper.releases.rounds": {"_INTERRUPTED_EVERY_S": 0.1},
    "helper.releases.statements": {"_KEPT_BYTES": 32 * 2**20, "_STATEMENT_BYTES": 2_048},
    "helper.releases.work_quota": {
        "_LARGEST_ROUNDS": 2,
        "_WORTH_GIVING_BACK": 64 * 2**20,
        "_INTERRUPTED_EVERY_S": 0.1,
    },
    "helper.trust.cluster_secrets": {"LONGEST_DAYS": 3_650, "_TOKEN_BYTES": 32},
    "helper.trust.floors": {
        "ROUND_BYTES": 4 * 2**30,
        "PREPARED_BYTES": 4 * 2**30,
        "MOST_HELD_BYTES": 64 * 2**30,
        "_FINGERPRINT_DIGITS": 64,
        "_MIB": 2**20,
    },
    "helper.trust.key_ring": {
        "MAX_KEY_ID": 255,
        "MAX_PUBLISHED": 16,
        "LIST_LIFE_S": 259_200,
        "LIST_STEP_S": 3_600,
    },
    "helper.trust.keys": {"STORAGE_KEY_BYTES": 32},
    "helper.trust.tasks": {"LEAST_COUNTED_S": 86_400.0, "_MOST_KEPT": 4_096},
}


@pytest.mark.parametrize("module", LIMITS, ids=lambda module: "in_" + module.replace(".", "_") + "_py")
def test_a_limit_of_a_helper_stays_what_it_is(module: str) -> None:
    found = import_module(module)
    assert {name: getattr(found, name) for name in LIMITS[module]} == LIMITS[module]
