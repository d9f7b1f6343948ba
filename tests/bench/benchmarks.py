"""Measure the figures of docs/explanation/benchmarks.md anew: `make benchmarks`.

    make benchmarks                                  every figure: some hours on an idle machine
    make benchmarks ARGS="--only bench-aggregate"    the figures whose command contains this text
    make benchmarks ARGS=--list                      the commands

Each figure is a row of the page, found by its first cell. The command in its last cell is run once for all
its rows, with --json, and the cells between are written anew, with the day, the machine and its load. Rows
of other commands stay as they are.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.bench.processor import processor

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "explanation" / "benchmarks.md"
Cells = str | Callable[[Any], str]
"""The cells between the first and the date: a format of what the command prints, or a function of it."""


def _accuracy(row: int) -> Callable[[Any], str]:
    form = (
        "{masked:.4f} | {masked_noised:.4f} at epsilon {epsilon:.1f} ({collusion_epsilon:.1f})"
        " | {plain_clipped:.4f} | {plain:.4f}"
    )
    return lambda ran: form.format(**ran[row])


def _repeated(ran: Any) -> str:
    (row,) = ran
    spread = f"{row['accuracy']:.4g} ± {row['standard_deviation']:.2g}"
    seeds = f"{row['seeds'][0]} to {row['seeds'][-1]}"
    return f"{spread} | {seeds} | {row['epsilon']:.3g} | {row['collusion_epsilon']:.3g}"


def _opened(ran: Any) -> str:
    phase = ran["jobs"]["mnist"]["phases"]["prepare"]
    return f"{5e5 * (phase['helper-0'] + phase['helper-1']) / ran['jobs']['mnist']['reports']:.0f} us"


def _arrived(way: str, size: str) -> Callable[[Any], str]:
    return lambda ran: "{wall_us:.0f}, {own_us:.1f}, {postgresql_us:.0f} us".format(**ran[way][size])


_WALLS: Final = "{%s[status_s]:.2f}, {%s[prepare_s]:.2f}, {%s[round_s]:.2f} s"

FIGURES: Final[Mapping[str, Mapping[str, Cells]]] = {
    "make table": {
        "WBCD, 30-50-50-1, 60 full-batch rounds": _accuracy(0),
        "MNIST, 784-32-10, 192 rounds of 2,083": _accuracy(1),
        "MNIST, 784-500-10, 192 rounds of 2,083": _accuracy(2),
        "MNIST, 784-500-10, 120 rounds of 8,333": _accuracy(3),
    },
    "python -m tests.bench.repeated --only wbcd": {
        "WBCD, 30-50-50-1, 60 full-batch rounds, noise 7.67": _repeated,
    },
    "python -m tests.bench.repeated --only mnist": {
        "MNIST, 784-500-10, 192 rounds of 2,083, correlated noise 9.04, 60 of 64 taken out": _repeated,
    },
    "make bench-models": {
        "Adult: AUC": "{adult_quickstart_auc:.4f}",
        "Adult: log loss": "{adult_quickstart_log_loss:.4f}",
        "Adult, one positive in a hundred: mean over base rate": "{rare_positives_mean_over_rate:.3f}",
        "Adult, one positive in a hundred: AUC": "{rare_positives_auc:.3f}",
    },
    "make bench-intervals": {
        "99 % intervals: least and greatest share that covers": "{coverage_least:.4f}, {coverage_most:.4f}",
        "settings with such intervals; settings without": "{cells:,}; {cells_without}",
    },
    "make bench-accounting": {
        "epsilon of persons with several reports over a lower bound, at most": "{user_over_lower_bound:.3f}",
        "epsilon of two Laplace noises over a lower bound, at most": "{laplace_both_over_lower_bound:.4f}",
        "epsilon of correlated noise is never below a simulation": "{bins_never_below_monte_carlo}",
        "one more charge after 10,000 different ones": "{seconds_per_charge_after_10000:.2f} s",
    },
    "make bench-load": {
        "reports a second and core, five minutes at 5,000/s": "{reports_per_core_s:,.0f}",
        "a batch of 200, p50 and p99": "{p50_ms:.0f} and {p99_ms:.0f} ms",
        "resident memory, first and last": "{rss_first_mib:.0f} and {rss_last_mib:.0f} MiB",
        "reports a second on PostgreSQL: one intake, two": "{replicas[one][reports_per_s]:,.0f} and "
        "{replicas[two][reports_per_s]:,.0f}",
        "intake's processor time a report: one, two": "{replicas[one][intake_us]:.1f} and "
        "{replicas[two][intake_us]:.1f} us",
        "PostgreSQL's processor time a report: one, two": "{replicas[one][postgresql_us]:.1f} and "
        "{replicas[two][postgresql_us]:.1f} us",
    },
    'make bench-load ARGS="--rate 0 --senders 2 --seconds 480"': {
        "reports a second, eight minutes at full speed": "{reports_per_s:,.0f}; {reports:,} reports",
        "growth of memory meanwhile": "{rss_growth_mib:.1f} MiB",
    },
    "make bench-walls": {
        "status, 200 reports, a round: undisturbed": _WALLS % (("quiet",) * 3),
        "the same under 1,000 silent streams": _WALLS % (("silent",) * 3),
    },
    'make bench-ingest ARGS="--reports 3000"': {
        "a browser seals both shares": "{seal_us:.0f} us",
        "one HPKE seal of them": "{hpke_seal_us:.0f} us",
        "a helper opens its share": lambda ran: f"{1e6 / ran['opened_per_s']:.0f} us",
        "bare X25519": lambda ran: f"{1e6 / ran['x25519_per_s']:.0f} us",
        "SQLite stores the report": lambda ran: f"{1e6 / ran['stored_per_s']:.0f} us",
    },
    "make bench-job": {
        "all parties, without the start of servers": "{mnist_cpu_s:.1f} s",
        "plain training of the same steps; ratio": "{mnist_plain_cpu_s:.2f} s; "
        "{mnist_cpu_s_over_plain:.0f} times",
        "reports a second and core, from browser to model": "{mnist_reports_per_s_per_core:,.0f}",
        "browsers split, prove, seal and upload, a report": "{upload_us_per_report:.0f} us",
        "the ad server checks and stores, a report": "{intake_us_per_report:.0f} us",
        "each helper opens, a report": _opened,
        "a round at each helper; at the ad server": "{helper_ms_per_round_mnist:.1f} ms; "
        "{adserver_ms_per_round_mnist:.1f} ms",
        "`job watch`, which waits for the end": "{cli_wait_cpu_s:.2f} s",
        "one HPKE seal; one opening": "{hpke_seal_us:.0f} us; {hpke_open_us:.0f} us",
        "two seals and two openings, over plain training": "{mnist_floor_over_plain:.1f} times",
        "WBCD: a round at each helper; at the ad server": "{helper_ms_per_round_tiny:.1f} ms; "
        "{adserver_ms_per_round_tiny:.1f} ms",
    },
    "make bench-start": {
        "`adserver --help`": "{cli_help_processor_s:.2f} s",
        "`adserver job show`": "{job_show_processor_s:.2f} s",
        "`adserver job plan`": "{job_plan_processor_s:.1f} s",
    },
    'make bench-memory ARGS="--reports 1000000"': {
        "`dataset seal` of 1,000,000 reports of 30 features": "{seal_s:.0f} s",
        "peak memory: helper, `dataset seal`, ad server": "{helpers_mib:.0f}, {seal_command_mib:.0f}, "
        "{adserver_mib:.0f} MiB",
    },
    'make bench-segments ARGS="--records 10000000"': {
        "segments written; of it the order": "{prepare_cpu_s:.0f} s; {finish_cpu_s:.1f} s",
        "committed": "{commit_cpu_s:.1f} s",
        "a round over all records, from disk": "{round_cpu_s:.1f} s",
        "peak of the process; the file": "{round_peak_mb:,} MB; {sealed_mb} MB",
    },
    'make bench-segments ARGS="--records 10000000 --segments file:///tmp/objects"': {
        "as objects: written, committed, a round": "{prepare_cpu_s:.0f}, {commit_cpu_s:.1f}, "
        "{round_cpu_s:.1f} s"
    },
    'make bench-segments ARGS="--records 200000 --features 784"': {
        "what a query reads, 200,000 records of 784 features": "{labels_cpu_s:.2f} s"
    },
    "make cluster-scaling": {
        "a round, over one process: one worker, two": "{cpu_over_local:.2f}, "
        "{cpu_over_local_two_workers:.2f} times",
        "two workers over one; two free processes over one": "{round_scaling:.2f}, "
        "{machine_scaling:.2f} times",
        "opening on workers: one over one process, two over one": "{opening_cpu_over_local:.2f}, "
        "{opening_scaling:.2f} times",
    },
    "make cluster-large": {
        "peak memory of the head, of a worker": "{head_peak_mb:,} MB, {holder_peak_mb:,} MB",
        "a round: first, later, by the head alone": "{round_s_first:.1f}, {round_s_later:.1f}, "
        "{round_s_local:.1f} s",
    },
    "make cluster": {
        "4,000 updates of 100,000 parameters: head, head alone": "{update_head_cpu_s:.2f}, "
        "{update_local_cpu_s:.2f} s"
    },
    "python -m tests.bench.arrivals": {
        f"{shown}, {int(size):,} in a transaction": _arrived(way, size)
        for shown, way in (("arrays", "arrays"), ("COPY", "copy"), ("lists of values", "value_lists"))
        for size in ("20", "1000", "5000")
    },
    "python -m tests.bench.stored": {
        "taken for a dataset, sent to both helpers": "{sealing_us_a_report:.0f} us; "
        "{sent_bytes_a_report:.0f} bytes",
        "its id in a helper's ledger": "{ledger_bytes_a_report:.1f} bytes",
        "expired, PostgreSQL's processor time": lambda ran: (
            f"{1e6 * ran['expiry_postgresql_s'] / ran['expired']:.1f} us"
        ),
    },
    "python -m tests.bench.report_objects --reports 50000": {
        "the database with all indexes": "{stored[rows][database_bytes_a_report]:.0f} bytes",
        "the same where ciphertexts lie in objects": "{stored[objects][database_bytes_a_report]:.0f} bytes",
        "the objects": "{stored[objects][object_bytes_a_report]:.0f} bytes",
        "intake's processor time: rows, objects": "{intake[rows][intake_us]:.1f}, "
        "{intake[objects][intake_us]:.1f} us",
        "reports a second of an intake: rows, objects": "{intake[rows][reports_per_s]:,.0f}, "
        "{intake[objects][reports_per_s]:,.0f}",
    },
    "python -m tests.bench.job_files": {
        "a checkpoint of 512 MiB: PostgreSQL, a folder": "{PostgreSQL[second_s]:.1f}, "
        "{folder[second_s]:.1f} s"
    },
    "make bench-aggregate": {
        "grouped sums of 1,000,000 reports": "{sizes[2][sums_per_s]:,} reports a second and core",
        "whole answers of 1,000,000 reports": "{sizes[2][queries_per_s]:,} reports a second and core",
    },
}


def row(what: str, cells: Cells, command: str, ran: Any, when: str) -> str:
    """Return the page's row of a figure."""
    shown = cells.format(**ran) if isinstance(cells, str) else cells(ran)
    return f"| {what} | {shown} | {when} | `{command}` |"


def with_rows(page: str, rows: Mapping[str, str]) -> str:
    """Return the page with these rows, by their first cell, in place of its own.

    Raises:
        KeyError: the page has no such row
    """
    lines = page.splitlines()
    places = {line.split(" | ")[0].removeprefix("| "): number for number, line in enumerate(lines)}
    for what, line in rows.items():
        lines[places[what]] = line
    return "\n".join(lines) + "\n"


def measure(command: str) -> Any:
    """Run a command of the page, and return the JSON that it prints."""
    words = shlex.split(command)
    if words[0] == "make":
        given = " ".join(word.removeprefix("ARGS=") for word in words[2:])
        words = ["make", "--silent", words[1], f"ARGS={f'{given} --json'.strip()}"]
    else:
        words = [sys.executable, *words[1:], "--json"]
    printed = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    start = min(place for place in map(printed.find, "{[") if place >= 0)
    return json.JSONDecoder().raw_decode(printed[start:])[0]


def main() -> None:
    """Measure, and rewrite the page after each command."""
    parser = argparse.ArgumentParser(description="Measure the figures of docs/explanation/benchmarks.md.")
    parser.add_argument("--only", default="", help="the commands that contain this text")
    parser.add_argument("--list", action="store_true", help="print the commands, and run none")
    arguments = parser.parse_args()
    machine = f"{processor().partition(' with ')[0]}, {os.cpu_count()} cores"
    for command, figures in FIGURES.items():
        if arguments.only not in command:
            continue
        print(command, flush=True)
        if arguments.list:
            continue
        when = f"{datetime.now(UTC):%Y-%m-%d}, {machine}, load {os.getloadavg()[0]:.0f}"
        ran = measure(command)
        rows = {what: row(what, cells, command, ran, when) for what, cells in figures.items()}
        PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
