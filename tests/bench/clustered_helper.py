"""A helper on a Ray cluster as its operator runs it, in a process of its own, and the same helper without.

    with ClusteredHelper(folder=folder) as fleet:
        site = sealed_site(fleet, made)                  # reports are sealed, then helper 1 gets workers
        site.answer(0)                                   # its answer, which is the twin's, bit for bit

Helper 0 is local. Helper 1 was stopped, its folder copied, and both started again: one on the cluster, the
*twin* without. There is no noise, so that what the two answer to the same round must be the same bytes.
"""

import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from sys import executable
from typing import Any

from adserver.peers.client import HelperClient
from docs.tutorial.fleet import HELPERS, HOST, Fleet
from maskedlark.model import weights
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import seeded
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import combine
from maskedlark.reports.report import Example
from maskedlark.reports.upload import Sealer
from tests.builders import examples, job_spec
from tests.chaos.uploads import Uploads
from tests.fleet_commands import create_model, create_task, seal
from tests.helper.executors.ray_machines import Machines, until

SEGMENT_RECORDS = 512
FEATURES = 32
HIDDEN = 512
TWIN = "twin"
JOINED = " joined\n"
LOST = "a worker of the cluster is lost"
_BATCH = 512
_DEADLINE_S = 600.0
_SMALL_SEGMENTS = (
    f"from helper.datasets import segments; segments.SEGMENT_RECORDS = {SEGMENT_RECORDS}; "
    "from helper.cli.main import main; main()"
)


@dataclass(kw_only=True)
class ClusteredHelper(Fleet):
    """Two helpers with small segments and an ad server; helper 1 can be given workers, and a twin."""

    is_no_noise: bool = True
    helper_options: tuple[str, ...] = ("--release-grid-ms", "0.5")

    def give_workers(self, made: Machines) -> None:
        """Start helper 1 again on a Ray cluster, and a copy of it without."""
        helper = self._processes.pop(HELPERS[1])
        helper.send_signal(signal.SIGTERM)
        helper.wait()
        shutil.copytree(self.data(HELPERS[1]), self.data(TWIN))
        alone = self.helper_options_of[1]
        workers = ("--ray", made.address, "--ray-worker-tls", str(made.certificates))
        self.helper_options_of = (self.helper_options_of[0], (*alone, *workers))
        self.start_helper(1)
        place = self.folder / f"{TWIN}.address"
        listen = f"--listen {HOST}:0 --port-file {place} --insecure --allow-no-noise".split()
        options = (*listen, *alone, *self.helper_options)
        self._start(TWIN, "lark-helper", "serve", "--data", str(self.data(TWIN)), *options)
        self._await(TWIN, place)

    def counted(self, words: str) -> int:
        """How often the log of the helper with workers says this."""
        return self.log(HELPERS[1]).count(words)

    def _program(self, party: str, program: str) -> list[str]:
        small = [executable, "-c", _SMALL_SEGMENTS]
        return small if program == "lark-helper" else super()._program(party, program)


@dataclass(kw_only=True)
class Site:
    """A job that helper 0, helper 1 with workers and its twin all answer."""

    fleet: ClusteredHelper
    made: Machines
    spec: JobSpec
    sent: bytes
    length: int
    features: tuple[bytes, ...] = field(repr=False)
    clients: dict[str, HelperClient] = field(default_factory=dict)

    def ask(self, party: str, round_index: int) -> Any:
        """One party's answer to a round."""
        return self.clients[party].run_round(self.spec, round_index, self.sent, self.length)

    def is_equal(self, round_index: int, answer: Any) -> bool:
        """Whether the answer of the helper with workers is its twin's, and agrees with helper 0's."""
        twin, other = self.ask(TWIN, round_index), self.ask(HELPERS[0], round_index)
        combine(other, answer)  # refuses helpers that disagree
        return bool(answer.encode() == twin.encode())

    def charges(self, round_index: int) -> int:
        """How many rows the ledger has of a round; 0 too if the job's own count says something else."""
        path = self.fleet.data(HELPERS[1]) / "ledger.sqlite3"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
            rows = ledger.execute("SELECT count(*) FROM rounds WHERE round_index = ?", [round_index])
            (found,), (answered,) = (
                rows.fetchone(),
                ledger.execute("SELECT rounds_answered FROM jobs").fetchone(),
            )
        return int(found) if answered == round_index + 1 else 0

    def await_joined(self, count: int) -> None:
        """Return once the helper's log says of so many workers, since it started, that they joined."""
        until(lambda: self.fleet.counted(JOINED) >= count)


@contextmanager
def sealed_site(fleet: ClusteredHelper, made: Machines, *, reports: int, rounds: int) -> Iterator[Site]:
    """Send and seal reports, give helper 1 its workers, and open one job at all three."""
    task = create_task(
        fleet,
        "kills",
        f"--classes 2 --num-features {FEATURES} --min-batch-size 20 --no-noise --epsilon 1 --clip-norm 1",
    )
    uploads, drawn = Uploads(fleet, task), seeded(0, "reports of a clustered helper")
    sealer = Sealer(uploads.bundle(), now=time.time())
    people: list[Example] = []
    for start in range(0, reports, _BATCH):
        people = examples(sealer.task, min(_BATCH, reports - start), drawn)
        assert uploads.send([sealer.report(one, unix_s=time.time(), randomness=drawn) for one in people])
    sealed = seal(fleet, task)
    assert sealed["admitted"] == reports
    fleet.give_workers(made)
    path = create_model(fleet, fleet.folder / "kills.onnx", (FEATURES, HIDDEN, 1), seed=5)
    model = parse(path.read_bytes(), num_features=FEATURES)
    spec = job_spec(
        job_id=b"killed in rounds",
        task_id=bytes.fromhex(task),
        dataset_id=bytes.fromhex(sealed["dataset_id"]),
        model_digest=model.digest,
        rounds=rounds,
        sampling_numerator=1 << 31,
    )
    sent = weights.encode([weights.quantise(values) for values in model.initial_values])
    with ExitStack() as open_:
        clients = {
            party: open_.enter_context(HelperClient(path.read_text(), None, _DEADLINE_S))
            for party in (*HELPERS, TWIN)
            for path in [fleet.folder / f"{party}.address"]
        }
        for client in clients.values():
            client.start_job(spec, path.read_bytes())
        yield Site(
            fleet=fleet,
            made=made,
            spec=spec,
            sent=sent,
            length=model.num_parameters,
            features=tuple(one.features.tobytes() for one in people),
            clients=clients,
        )
