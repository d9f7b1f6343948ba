"""The limits of an ad server, by value: tests use them by name, so none of those notices that one changed.

They bound what strangers and browsers may take of it, and how long a grant lasts.
"""

from importlib import import_module
from inspect import signature

import pytest

from adserver.ingest.slow_client_limits import HttpLimits
from adserver.peers.retrying import Backoff
from adserver.training.worker import JobWorker
from maskedlark.rpc.sites import TrustedProxies

LIMITS: dict[str, dict[str, object]] = {
    "adserver.admin.grants": {"BELIEVED_S": 0.7, "_MOST": 1_024},
    "adserver.ingest.batch": {"LEAST_REPORT_BYTES": 64, "_MAX_VARINT_BYTES": 10},
    "adserver.ingest.body_memory": {"ROOM_BYTES": 256 * 2**20},
    "adserver.ingest.http_app": {"MAX_BATCH_BYTES": 8 * 2**20, "BODY_DEADLINE_S": 30.0},
    "adserver.ingest.http_server": {
        "_START_DEADLINE_S": 30.0,
        "_DRAIN_S": 10,
        "_POLL_S": 0.01,
        "_SOCKETS_A_PLACE": 2,
        "LIMITS": HttpLimits(head_s=10.0, write_s=20.0, least_read_bytes=16_384, connections=2_000),
        "NO_PROXIES": TrustedProxies(),
    },
    "adserver.ingest.intake": {
        "_TRANSACTION_REPORTS": 1_000,
        "_TRANSACTION_BYTES": 2**20,
        "_LOG_EVERY_S": 60.0,
    },
    "adserver.ingest.json_error": {"RETRY_AFTER_S": 2},
    "adserver.ingest.local_app": {"MOST_LISTED": 1_000, "LARGEST_WEIGHT": 2**62},
    "adserver.ingest.shared_listener": {"_BACKLOG": 512, "_REFUSED_AT_ONCE": 64, "_UNSENT_BYTES": 131_072},
    "adserver.ingest.slow_client_limits": {"_MOST_HEAD_BYTES": 65_536, "_PIECES": 1_024, "_PIECE_BYTES": 256},
    "adserver.ingest.task_pages": {"TASKS_A_PAGE": 100, "FRESH_S": 1.0, "MOST_KEPT": 64},
    "adserver.store.access": {"LOGIN_S": 600.0, "SESSION_S": 43_200.0, "_SECRET_BYTES": 32},
    "adserver.store.leases": {"MAX_WORKERS_LOST": 10},
    "adserver.store.reports": {
        "_PAGE_BYTES": 2**20,
        "_GROUP_BYTES": 8 * 2**20,
        "_GROUP_CALLS": 1_024,
        "_ROW_OVERHEAD_BYTES": 64,
    },
    "adserver.training.worker": {
        "_FIRST_REST_S": 1.0,
        "_LONGEST_REST_S": 60.0,
        "JOB_PATIENCE": Backoff(give_up_after_s=604_800.0),
    },
}


@pytest.mark.parametrize("module", LIMITS, ids=lambda module: "in_" + module.replace(".", "_") + "_py")
def test_a_limit_of_an_ad_server_stays_what_it_is(module: str) -> None:
    found = import_module(module)
    assert {name: getattr(found, name) for name in LIMITS[module]} == LIMITS[module]


def test_a_worker_looks_and_keeps_its_jobs_as_often_as_it_says() -> None:
    parameters = signature(JobWorker).parameters
    assert (parameters["poll_s"].default, parameters["lease_s"].default) == (0.25, 6.0)
