"""`make bench-walls`: what one tenant waits for while another keeps 1,000 silent streams open.

A helper with its default 16 threads, over mutual TLS, in this process, so attacker, victim and helper share
one interpreter. The *stubborn* attacker makes each call again a second after it was refused, as it is asked
to. The worst of ten attempts is shown.

    python -m tests.bench.walls [--json]
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

from maskedlark.rpc.patience import WITH_KNOWN_CLIENTS
from maskedlark.rpc.transport import make_channel
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.builders import shares_for
from tests.helper.parties import WEIGHTS
from tests.helper.serving.test_helper_service import Wire
from tests.helper.serving.test_silent_streams import HALF, Site, a_site
from tests.silent_streams import silent_streams

STREAMS: Final = 1_000
ATTEMPTS: Final = 10
METHOD: Final = "/maskedlark.v1.Helper/PrepareDataset"


@contextmanager
def attacked(site: Site, attack: str) -> Iterator[None]:
    """The site under one kind of attack."""
    silence: Any = nullcontext()
    if attack != "quiet":
        silence = silent_streams(
            site.address,
            site.evil,
            method=METHOD,
            count=STREAMS,
            expected_open=HALF,
            is_stubborn=attack == "stubborn",
        )
    with silence:
        yield


def worst_s(do: Callable[[int], object]) -> float:
    """The longest of some attempts."""
    worst = 0.0
    for attempt in range(ATTEMPTS):
        began = perf_counter()
        do(attempt)
        worst = max(worst, perf_counter() - began)
    return round(worst, 3)


def measured(site: Site) -> dict[str, float]:
    """How long the tenant waits for each thing."""
    scene = site.scene
    shares = shares_for(scene.reports(200, seed=9), 0)
    spec = scene.job(scene.seal(30), rounds=ATTEMPTS)
    scene.start(spec)
    with make_channel(site.address, site.ours) as channel:
        stub = helper_pb2_grpc.HelperStub(channel)
        wire = Wire(stub=stub)
        return {
            "status_s": worst_s(lambda _: stub.GetStatus(pb.StatusRequest(), timeout=60)),
            "prepare_s": worst_s(lambda _: wire.prepare(scene.task_id, [shares])),
            "round_s": worst_s(lambda attempt: wire.round(spec, attempt, WEIGHTS)),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    figures: dict[str, Any] = {"streams": STREAMS}
    for attack in ("quiet", "silent", "stubborn"):
        with (
            TemporaryDirectory() as folder,
            a_site(Path(folder), WITH_KNOWN_CLIENTS) as site,
            attacked(site, attack),
        ):
            figures[attack] = measured(site)
    figures["within_1_s"] = all(seconds <= 1.0 for seconds in figures["silent"].values())
    print(
        json.dumps(figures) if as_json else "\n".join(f"{name}: {value}" for name, value in figures.items())
    )


if __name__ == "__main__":
    main()
