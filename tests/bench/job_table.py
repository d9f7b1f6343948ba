"""The table of whole jobs in docs/how-to/operations.md, from one run: `make bench-job ARGS=--write`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "operations.md"
BEGIN: Final = "<!-- written by bench-job: begin -->\n"
END: Final = "<!-- written by bench-job: end -->\n"
ROWS: Final = {
    "all parties of the MNIST job, the start of servers left out": "{mnist_cpu_s:.1f} s",
    "plain training of the same steps; how many times less that is": "{mnist_plain_cpu_s:.2f} s; "
    "{mnist_cpu_s_over_plain:.0f} times",
    "reports a second and core, from browser to model": "{mnist_reports_per_s_per_core:,.0f}",
    "browsers split, prove, seal and upload, a report": "{upload_us_per_report:.0f} us",
    "the ad server checks and stores, a report": "{intake_us_per_report:.0f} us",
    "each helper opens, a report": "{open_us:.0f} us",
    "a round at each helper; at the ad server": "{helper_ms_per_round_mnist:.1f} ms; "
    "{adserver_ms_per_round_mnist:.1f} ms",
    "`job watch`, which waits for the end": "{cli_wait_cpu_s:.2f} s",
    "one HPKE seal; one opening": "{hpke_seal_us:.0f} us; {hpke_open_us:.0f} us",
    "two seals and two openings a report, over plain training": "{mnist_floor_over_plain:.1f} times",
    "a round of the WBCD job at each helper; at the ad server": "{helper_ms_per_round_tiny:.1f} ms; "
    "{adserver_ms_per_round_tiny:.1f} ms",
}


def table(ran: Mapping[str, Any]) -> str:
    """The table of a run of both jobs, as `make bench-job ARGS=--json` prints it."""
    mnist = ran["jobs"]["mnist"]
    opened_s = sum(mnist["phases"]["prepare"][helper] for helper in ("helper-0", "helper-1")) / 2
    shown = {**ran, "open_us": 1e6 * opened_s / mnist["reports"]}
    lines = [f"| processor time, {ran['processor']}, {ran['cores']} cores | |", "|---|---|"]
    return (
        "\n".join((*lines, *(f"| {what} | {form.format(**shown)} |" for what, form in ROWS.items()))) + "\n"
    )


def written(page: str, ran: Mapping[str, Any]) -> str:
    """A page with the table of a run in place of the one that it holds."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page says nowhere that bench-job writes a table into it")
    return f"{before}{BEGIN}\n{table(ran)}\n{END}{after}"


def write(ran: Mapping[str, Any]) -> None:
    """Put the table of a run into the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), ran), encoding="utf-8")
