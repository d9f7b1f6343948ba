"""A helper that ends every call well and without a word.

Typed errors, from every method of the ad server's client.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from adserver.peers.client import HelperClient
from maskedlark.errors import JobReason
from maskedlark.model.losses import Loss
from maskedlark.releases.job import JobSpec
from maskedlark.rpc.transport import make_server
from tests.builders import examples, reports, shares_for, world
from tests.patience import HANGS_S
from tests.refusals import refused

WORLD = world()
SHARES = shares_for(reports(WORLD, examples(WORLD.task, 2)), 0)
JOB = JobSpec(
    job_id=b"j" * 16, task_id=WORLD.task.task_id, dataset_id=bytes(32), model_digest=bytes(32),
    loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, rounds=3, sampling_numerator=1 << 31, noise_multiplier=1.0,
)  # fmt: skip
CALLS: dict[str, Callable[[HelperClient], object]] = {
    "status": lambda client: client.status(),
    "register": lambda client: client.register_task(WORLD.task),
    "prepare": lambda client: client.prepare_dataset(WORLD.task.task_id, b"h" * 16, [SHARES], num_reports=2),
    "commit": lambda client: client.commit_dataset(
        WORLD.task.task_id, b"h" * 16, np.array([True, False]), b"d" * 32
    ),
    "start": lambda client: client.start_job(JOB, b"a model"),
    "round": lambda client: client.run_round(JOB, 0, b"weights", 3),
    "close": lambda client: client.close_job(JOB),
}


class Silent(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs alone
    def service(self, _details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._answer)

    def _answer(self, requests: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        for _ in requests:
            pass
        return iter(())


@pytest.fixture(scope="module")
def client() -> Iterator[HelperClient]:
    server, port = make_server("127.0.0.1:0", None, threads=4)
    server.add_generic_rpc_handlers((Silent(),))
    server.start()
    with HelperClient(f"127.0.0.1:{port}", None, HANGS_S) as opened:
        yield opened
    server.stop(1).wait(HANGS_S)


@pytest.mark.parametrize("name", CALLS)
def test_no_answer_is_a_bad_answer(name: str, client: HelperClient) -> None:
    with refused(JobReason.BAD_ANSWER):
        CALLS[name](client)
