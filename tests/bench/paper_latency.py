"""The paper's figure 4: what one request to both helpers takes, against the batch size.

Two real helper processes over gRPC on loopback hold 4,096 sealed reports, and are asked for rounds of B
expected records, as a job asks them, without noise. Beside it the helper's own computation in this process,
for B records: no process, no network, no ledger. In the paper every request carries its B records; here
records are sealed and sent once, so a request carries the weights alone, two bytes each, and B changes what
is computed only.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from adserver.peers.connect import Peers
from adserver.store.database import create_tables, default_url
from adserver.store.tasks import TaskStore
from docs.tutorial.fleet import HELPERS, Fleet
from helper.gradient.choose import choose_engine
from maskedlark.model import weights
from maskedlark.model.dense import dense_network
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.releases.job import JobSpec
from maskedlark.releases.samples import Samples
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.task import Task
from maskedlark.runtime.database import open_database
from tests.bench.harness import seconds
from tests.bench.mnist import FOLDER
from tests.builders import job_spec
from tests.fleet_commands import create_task, seal, send_reports

RECORDS: Final = 4_096
BATCHES: Final = tuple(1 << power for power in range(13))
QUICK_BATCHES: Final = (1, 32, 1_024, 4_096)
_FIELD_ELEMENT: Final = 8
_WARM_ROUNDS: Final = 2
_ROUNDS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One of the paper's networks, and where its records come from."""

    name: str
    layers: tuple[int, ...]
    source: str
    loss: Loss

    @property
    def num_classes(self) -> int:
        """Two for one output."""
        return max(2, self.layers[-1])


NETWORKS: Final = (
    Network(
        name="wbcd",  # its shape; the data set has 569 records, so these are made up
        layers=(30, 50, 50, 1),
        source=f"synthetic --synthetic-features 30 --synthetic-rows {RECORDS}",
        loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
    ),
    Network(
        name="mnist",
        layers=(784, 500, 10),
        source=f"mnist --mnist-dir {FOLDER}",
        loss=Loss.CROSS_ENTROPY,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One batch size.

    Attributes:
        network: wbcd or mnist.
        batch_size: Records expected in a round.
        request_ms: From asking both helpers to both answers, the median.
        local_ms: The helper's computation alone, for so many records in this process, the median.
        times: The one over the other.
        bytes_sent: To one helper: the weights.
        bytes_back: From one helper: its share of the sum.
    """

    network: str
    batch_size: int
    request_ms: float
    local_ms: float
    times: float
    bytes_sent: int
    bytes_back: int


def latencies(*, is_quick: bool) -> list[Latency]:
    """Both networks, every batch size. MNIST is left out where its files are not."""
    found = []
    for network in NETWORKS:
        if network.name == "mnist" and not FOLDER.is_dir():
            sys.stderr.write(f"figure 4: no MNIST in {FOLDER}\n")
            continue
        with tempfile.TemporaryDirectory() as folder:
            for one in _of(network, Path(folder), QUICK_BATCHES if is_quick else BATCHES):
                sys.stderr.write(
                    f"figure 4, {one.network}, batch {one.batch_size}: {one.request_ms:.1f} ms\n"
                )
                found.append(one)
    return found


def _of(network: Network, folder: Path, batches: tuple[int, ...]) -> Iterator[Latency]:
    warm = "from helper.serving.warmup import warm_up; warm_up()"
    subprocess.run([sys.executable, "-c", warm], check=True)
    model = dense_network(list(network.layers), "relu", seed=1)
    parsed = parse(model, num_features=network.layers[0])
    with (
        Fleet(folder=folder, is_no_noise=True, helper_options=("--min-batch-size-floor", "1")) as fleet,
        ExitStack() as stack,
    ):
        dataset = bytes.fromhex(_seal(fleet, network))
        engine = open_database(default_url(fleet.data("adserver")))
        stack.callback(engine.dispose)
        create_tables(engine)
        task = TaskStore(engine).all()[0].bundle.task
        addresses = tuple((fleet.folder / f"{helper}.address").read_text() for helper in HELPERS)
        helpers = Peers(addresses=(addresses[0], addresses[1]), tls=None, deadline_s=60.0).open(stack, engine)
        pool = stack.enter_context(ThreadPoolExecutor(len(helpers)))
        for batch_size in batches:
            job = _job(task, dataset, parsed, network.loss, batch_size)
            encoded = weights.encode([weights.quantise(value) for value in parsed.initial_values])
            list(pool.map(lambda helper, of=job: helper.start_job(of, model), helpers))

            def request(index: int, of: JobSpec = job, sent: bytes = encoded) -> None:
                list(
                    pool.map(
                        lambda helper: helper.run_round(of, index, sent, parsed.num_parameters),
                        helpers,
                    )
                )

            request_ms = _median_ms(request)
            local_ms = _median_ms(_local(task, parsed, network, batch_size))
            yield Latency(
                network=network.name,
                batch_size=batch_size,
                request_ms=request_ms,
                local_ms=local_ms,
                times=request_ms / local_ms,
                bytes_sent=len(encoded),
                bytes_back=_FIELD_ELEMENT * parsed.num_parameters,
            )


def _seal(fleet: Fleet, network: Network) -> str:
    """A dataset of `RECORDS` reports; its id."""
    options = f"--classes {network.num_classes} --num-features {network.layers[0]} --no-noise"
    task = create_task(fleet, network.name, f"{options} --min-batch-size 1 --clip-norm 1 --epsilon 1")
    send_reports(fleet, task, f"--source {network.source} --limit {RECORDS} --seed 1")
    return str(seal(fleet, task)["dataset_id"])


def _job(task: Task, dataset: bytes, model: Model, loss: Loss, batch_size: int) -> JobSpec:
    return job_spec(
        job_id=os.urandom(16),
        task_id=task.task_id,
        dataset_id=dataset,
        model_digest=model.digest,
        loss=loss,
        rounds=_WARM_ROUNDS + _ROUNDS,
        sampling_numerator=Samples.numerator(expected_batch_size=batch_size, dataset_size=RECORDS),
        is_sample_public=True,
    )


def _local(task: Task, model: Model, network: Network, batch_size: int) -> Callable[[int], None]:
    """The helper's sum over so many records, all candidates of each, in this process."""
    engine = choose_engine(model, network.loss, task.clip, task.labels.size)
    random = np.random.default_rng(1)
    classes = np.arange(network.num_classes, dtype=np.uint32)
    batch = InputShares(
        features=random.integers(0, 256, (batch_size, network.layers[0]), np.uint8),
        labels=np.broadcast_to(classes, (batch_size, len(classes))).copy(),
        mask_shares=random.integers(0, 1 << 63, (batch_size, len(classes)), np.uint64),
    )
    tensors = tuple(weights.quantise(value) for value in model.initial_values)

    def run(_: int) -> None:
        engine.masked_sum(tensors, batch)

    return run


def _median_ms(call: Callable[[int], None]) -> float:
    """The median of the calls after the first ones."""
    took = [seconds(partial(call, index), time.perf_counter) for index in range(_WARM_ROUNDS + _ROUNDS)]
    return 1_000 * statistics.median(took[_WARM_ROUNDS:])
