"""What benches share: a parser with --json, figures shown as JSON or as lines, and the best of several turns.

arguments = bench_parser(__doc__).parse_args()
best = fastest({"ours": ours, "theirs": theirs}, turns=5)
show({"ratio": best["theirs"] / best["ours"]}, is_json=arguments.json)
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

Clock = Callable[[], float]


def bench_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser that shows a module's text as it is, with --json."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def plain(found: Any) -> Any:
    """Dataclasses as dicts, also in a dict or a list."""
    if isinstance(found, dict):
        return {name: plain(value) for name, value in found.items()}
    if isinstance(found, list):
        return [plain(one) for one in found]
    return (
        dataclasses.asdict(found)
        if dataclasses.is_dataclass(found) and not isinstance(found, type)
        else found
    )


def show(found: Any, *, is_json: bool) -> None:
    """Print figures by name, or a list of them: one line of JSON, or a line for each."""
    found = plain(found)
    if is_json:
        print(json.dumps(found))
        return
    for one in found if isinstance(found, list) else [found]:
        for name, value in one.items():
            print(f"{name:40} {value:,.6g}" if isinstance(value, float) else f"{name:40} {value}")


def seconds(work: Callable[[], object], clock: Clock = time.process_time) -> float:
    """How long some work takes: of the processor unless told otherwise."""
    began = clock()
    work()
    return clock() - began


def fastest(
    sides: Mapping[str, Callable[[], object]], turns: int, clock: Clock = time.process_time
) -> dict[str, float]:
    """The best time of each side, the sides taking turns: a shared machine only ever adds time."""
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(turns):
        for name, work in sides.items():
            best[name] = min(best[name], seconds(work, clock))
    return best


def best_of(work: Callable[[], object], turns: int, clock: Clock = time.process_time) -> float:
    """The best time of some work."""
    return min(seconds(work, clock) for _ in range(turns))


def cpu_s(*processes: psutil.Process) -> float:
    """What processes have used of the processor, those that they started and that have ended left out."""
    return sum(sum(one.cpu_times()[:2]) for one in processes)


def peak_mib(pid: int | str = "self", field: str = "VmHWM") -> float:
    """The most memory that a process had in RAM, as the kernel kept it, or what it has (VmRSS); 0 if it is
    gone.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(field)), 0.0)
