"""Both helpers' HPKE keys are rotated three times while browsers upload and datasets are sealed.

Nobody is restarted, nothing lost.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.request import urlopen

import pytest

from adserver.quickstart.ports import free_ports
from docs.tutorial.fleet import HELPERS, HOST, Fleet
from maskedlark.randomness import seeded
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.upload import Sealer
from tests.builders import examples
from tests.chaos.uploads import Uploads
from tests.fleet_commands import create_task
from tests.patience import HANGS_S

pytestmark = [pytest.mark.slow, pytest.mark.long]
ROTATIONS = 3
GIVEN_UP = 30


@dataclass(kw_only=True)
class Run:
    """What three rotations under load left behind."""

    fleet: Fleet
    task: str
    uploads: Uploads
    first: Sealer
    ports: list[int]
    sealed: list[Any] = field(default_factory=list)
    listed: tuple[list[list[int]], list[list[int]]] = field(default_factory=lambda: ([], []))

    def rotate(self, *options: str) -> None:
        """What the two operators do, one after the other."""
        for role, helper in enumerate(HELPERS):
            printed = self.fleet.run(
                "lark-helper", "keys", "rotate", "--data", str(self.fleet.data(helper)), *options, "--json"
            )
            self.listed[role].append([row["key_id"] for row in json.loads(printed)["keys"]])

    def await_newest(self, key_id: int) -> None:
        """Until browsers that fetch the bundle seal to this key of both helpers."""
        until = time.monotonic() + HANGS_S
        while {keys.key_list.keys[0].key_id for keys in self.uploads.bundle().key_lists} != {key_id}:
            assert time.monotonic() < until, "the ad server does not publish the new keys"
            time.sleep(0.1)

    def seal(self) -> None:
        self.sealed.append(self.fleet.adserver_json("dataset", "seal", "--task", self.task))

    def opened(self, role: int, outcome: str) -> float:
        """A helper's own count of shares that it opened, or did not."""
        with urlopen(
            f"http://{HOST}:{self.ports[role]}/metrics", timeout=HANGS_S
        ) as answer:  # our own server
            lines = answer.read().decode().splitlines()
        start = f'helper_shares_opened_total{{outcome="{outcome}"}} '
        return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    ports = free_ports(2)
    with Fleet(
        folder=tmp_path_factory.mktemp("rotations"),
        is_no_noise=True,
        helper_options_of=(
            ("--metrics-listen", f"{HOST}:{ports[0]}"),
            ("--metrics-listen", f"{HOST}:{ports[1]}"),
        ),
        adserver_options=("--refresh-keys", "1"),
    ) as fleet:
        task = create_task(
            fleet,
            "rotations",
            "--classes 2 --num-features 30 --min-batch-size 50 --no-noise --epsilon 1 --clip-norm 1",
        )
        uploads = Uploads(fleet, task)
        made = Run(
            fleet=fleet,
            task=task,
            uploads=uploads,
            first=Sealer(uploads.bundle(), now=time.time()),
            ports=ports,
        )
        with uploads.running():
            for turned, suite in zip(range(1, ROTATIONS + 1), list(HpkeSuite)[1:], strict=False):
                time.sleep(1.0)
                made.rotate("--suite", suite)
                made.seal()  # while some seal to the old keys, some to the new ones
                made.await_newest(1 + turned)
            time.sleep(1.0)
        made.seal()
        yield made


def test_every_acknowledged_report_is_admitted(run: Run) -> None:
    assert len(run.uploads.acknowledged) >= 400
    assert run.uploads.key_ids == ({1, 2, 3, 4}, {1, 2, 3, 4})
    assert [one["dropped"] for one in run.sealed] == [[{}, {}]] * (ROTATIONS + 1)
    assert sum(one["admitted"] for one in run.sealed) == len(run.uploads.acknowledged)
    for role in (0, 1):
        assert run.opened(role, "admitted") == len(run.uploads.acknowledged)
        assert run.opened(role, "unknown_key") == run.opened(role, "not_opened") == 0


def test_key_ids_are_never_used_again(run: Run) -> None:
    assert run.listed[0][:ROTATIONS] == run.listed[1][:ROTATIONS] == [[1, 2], [1, 2, 3], [1, 2, 3, 4]]


def test_a_key_that_the_helpers_gave_up_is_a_typed_reason_and_counted(run: Run) -> None:
    """The newest key is followed without an overlap.

    Reports sealed to it are dropped, and hold up no others.
    """
    newest = Sealer(run.uploads.bundle(), now=time.time())
    run.rotate("--overlap-days", "0")
    run.await_newest(ROTATIONS + 2)
    senders = (
        (newest, GIVEN_UP),
        (Sealer(run.uploads.bundle(), now=time.time()), 50),
        (run.first, 50),
    )  # the first key still has its 30 days
    for number, (sealer, count) in enumerate(senders):
        randomness = seeded(number, "after the overlap")
        people = examples(sealer.task, count, randomness)
        assert run.uploads.send(
            [sealer.report(one, unix_s=time.time(), randomness=randomness) for one in people]
        )
    run.seal()
    assert run.sealed[-1]["admitted"] == 100
    assert run.sealed[-1]["dropped"] == [{"unknown_key": GIVEN_UP}] * 2
    assert [run.opened(role, "unknown_key") for role in (0, 1)] == [GIVEN_UP] * 2


def test_nobody_was_restarted(run: Run) -> None:
    for party in HELPERS:
        assert run.fleet.log(party).count("serving on") == 1
