"""`make bench-walls`: what one tenant waits for while another keeps 1,000 silent streams open, or computes.

A helper with its default 16 threads, over mutual TLS, in this process, so attacker, victim and helper share
one interpreter. The *stubborn* attacker makes each call again a second after it was refused, as it is asked
to. One that computes keeps as many large rounds, or long evaluations, at work as the helper lets one tenant
have, each just within the limits. The worst of ten attempts is shown; where another tenant computes the
middle one, for all share the machine's cores.

    python -m tests.bench.walls [--json]
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

from maskedlark.rpc.stream_timeouts import WITH_KNOWN_CLIENTS
from maskedlark.rpc.transport import make_channel
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.bench.harness import bench_parser, seconds, show
from tests.bench.heavy_tenant import engine_of, heavy_calls, limit_bytes
from tests.builders import shares_for
from tests.helper.parties import FLOORS, WEIGHTS
from tests.helper.serving.test_helper_service import Wire
from tests.helper.serving.test_silent_streams import HALF, Site, a_site
from tests.silent_streams import silent_streams

STREAMS: Final = 1_000
ATTEMPTS: Final = 10
MOST_SLOWER: Final = 3.0
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
    return max(attempts_s(do))


def middle_s(do: Callable[[int], object]) -> float:
    """The middle one of some attempts."""
    return sorted(attempts_s(do))[ATTEMPTS // 2]


def attempts_s(do: Callable[[int], object]) -> list[float]:
    """How long each of some attempts took."""
    return [round(seconds(partial(do, attempt), perf_counter), 4) for attempt in range(ATTEMPTS)]


def measured(site: Site, of: Callable[[Callable[[int], object]], float] = worst_s) -> dict[str, float]:
    """How long the tenant waits for each thing."""
    scene = site.scene
    shares = shares_for(scene.reports(200, seed=9), 0)
    spec = scene.job(scene.seal(30), rounds=ATTEMPTS)
    scene.start(spec)
    with make_channel(site.address, site.ours) as channel:
        stub = helper_pb2_grpc.HelperStub(channel)
        wire = Wire(stub=stub)
        return {
            "status_s": of(lambda _: stub.GetStatus(pb.StatusRequest(), timeout=60)),
            "prepare_s": of(lambda _: wire.prepare(scene.task_id, [shares])),
            "round_s": of(lambda attempt: wire.round(spec, attempt, WEIGHTS)),
        }


def computing(kind: str | None) -> dict[str, float]:
    """How long the tenant waits for each thing while another one computes, or nobody does."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        limits = replace(FLOORS, max_round_bytes=limit_bytes())
        site = stack.enter_context(
            a_site(Path(folder), WITH_KNOWN_CLIENTS, engine_for=engine_of, floors=limits)
        )
        if kind is not None:
            stack.enter_context(heavy_calls(site, kind))
        return measured(site, middle_s)


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    as_json = parser.parse_args().json
    figures: dict[str, Any] = {"streams": STREAMS}
    for attack in ("quiet", "silent", "stubborn"):
        with (
            TemporaryDirectory() as folder,
            a_site(Path(folder), WITH_KNOWN_CLIENTS) as site,
            attacked(site, attack),
        ):
            figures[attack] = measured(site)
    alone = figures["alone"] = computing(None)
    for kind in ("rounds", "evaluations"):
        figures[kind] = under = computing(kind)
        figures[f"slower_by_{kind}"] = {name: round(under[name] / alone[name], 2) for name in alone}
    figures["within_3_times"] = all(
        ratio <= MOST_SLOWER
        for kind in ("rounds", "evaluations")
        for ratio in figures[f"slower_by_{kind}"].values()
    )
    figures["within_1_s"] = all(seconds <= 1.0 for seconds in figures["silent"].values())
    show(figures, is_json=as_json)


if __name__ == "__main__":
    main()
