"""What product modules get in place of threads, files that are flushed, channels and curves while a
simulation runs.
"""

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from maskedlark.randomness import seeded
from tests.simulation.channel import Channel
from tests.simulation.fleet import Fleet
from tests.simulation.primitives import InlineExecutor, Primitives


class _NoCurves:
    """A job's pictures, not drawn."""

    @classmethod
    @contextmanager
    def open(cls, *_: Any, **__: Any) -> Iterator["_NoCurves"]:
        yield cls()

    def append(self, _: object) -> None:
        pass


@contextmanager
def patched(fleet: Fleet) -> Iterator[None]:
    """The product on a fleet's kernel and network, with its ways to write files, and every global source of
    chance seeded.
    """
    kernel, network = fleet.kernel, fleet.network
    its = Primitives(kernel)
    stand_ins: dict[str, Any] = {
        "adserver.training.worker.Event": its.Event,
        "adserver.training.worker.Thread": its.Thread,
        "adserver.peers.pair.ThreadPoolExecutor": its.Executor,
        "adserver.peers.pair.wait": its.wait,
        "adserver.peers.retrying.Event": its.Event,
        "adserver.collecting.sealing.Event": its.Event,
        "adserver.peers.query_both.Event": its.Event,
        "maskedlark.runtime.periodic.Thread": its.Thread,
        "maskedlark.runtime.periodic.Event": its.Event,
        "maskedlark.runtime.periodic.sleep": kernel.sleep,
        # Bodies are there at once. The process's watch would keep a simulated thread, which nobody runs.
        "maskedlark.rpc.stream_timeouts._BODIES": SimpleNamespace(looking=lambda _: nullcontext()),
        "tenacity.time": SimpleNamespace(monotonic=lambda: kernel.now_s),
        "adserver.peers.client.RenewedChannel": lambda address, _tls, interceptors: Channel(
            kernel, network, address, interceptors
        ),
        "adserver.store.job_folder.write_durably": fleet.write_durably,
        "helper.trust.keys._replace": fleet.replace_key_file,
        "adserver.training.runner.CurveWriter": _NoCurves,
        "adserver.training.federated.run.CurveWriter": _NoCurves,
        "adserver.training.federated.run._POLL_S": 0.5,
        "adserver.training.worker.system_randomness": seeded(fleet.faults.seed, "handles of rounds"),
        "helper.releases.noise_cache.ThreadPoolExecutor": InlineExecutor,
    }
    with ExitStack() as stack:
        for name, stand_in in stand_ins.items():
            stack.enter_context(patch(name, stand_in))
        stack.enter_context(patch.object(os, "fsync", lambda _: None))
        random.seed(fleet.faults.seed)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        stack.callback(torch.set_num_threads, threads)
        yield
