"""Secrets planted in a full run of real processes, over mutual TLS, are found afterwards in no file, log,
trace, metric or answer in clear.

What may hold a secret is its owner's own: a helper's keys.json and each party's tls.key. Everything else that
the parties wrote is searched, each secret in the forms in which it could have got there.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.tutorial.fleet import HELPERS
from maskedlark import canonical
from maskedlark.reports.task import Task
from tests.e2e.canary_people import REPORTS
from tests.e2e.canary_run import Run, canary_run, rows
from tests.e2e.span_reading import Span

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")  # ms: spans are written before a process is killed
        with canary_run(tmp_path_factory.mktemp("canaries")) as made:
            yield made


def places(run: Run) -> Iterator[tuple[str, bytes]]:
    """Everything that was written or said, but for the owners' key files."""
    yield from run.seen.items()
    for path in sorted(run.fleet.folder.rglob("*")):
        if path.is_file() and path.name not in ("keys.json", "tls.key"):
            yield str(path.relative_to(run.fleet.folder)), path.read_bytes()


KINDS = (
    "features", "labels", "masks", "value shares", "whole shares", "measured keys", "measured values",
    "un-noised sums", "noise", "blinds",
    "keys",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_no_planted_secret_is_found_anywhere_in_clear(run: Run, kind: str) -> None:
    assert run.forms[kind]
    assert not [
        f"{kind} in {name}" for name, content in places(run) for form in run.forms[kind] if form in content
    ]


def leaks(run: Run) -> Iterator[tuple[str, bytes]]:
    """What careless code of a helper would write of the arrays that it holds."""
    first = next(iter(run.plaintexts[0]))
    task = canonical.decode(Task, rows(run.fleet.data(HELPERS[0]), "SELECT task FROM tasks")[0][0])
    shares = run.shares(task, 0)
    assert shares.measured is not None
    arrays: dict[str, Any] = {"labels": shares.labels, "measured keys": shares.measured.keys}
    for kind, array in arrays.items():
        said = [
            str(array),
            repr(array),
            str(array.tolist()),
            json.dumps(array.tolist()),
            str(array[7]),
            repr(array[7]),
            f"{array[7].tolist()}",
        ]
        said += [
            json.dumps(array.astype(float).tolist()),
            str(array[7].astype(float).tolist()),
            array[7].tobytes().hex(),
        ]
        yield from ((kind, text.encode()) for text in said)
        yield from (
            (kind, array.astype(like).tobytes())
            for like in ("<u4", ">u4", "<i8", ">i8", "<f4", ">f4", "<f8", ">f8")
        )
        yield from (
            (kind, array[7:8].astype(like).tobytes())
            for like in ("<u4", ">u4", "<i8", ">i8", "<f4", ">f4", "<f8", ">f8")
        )
    wide = {"masks": shares.mask_shares, "value shares": shares.measured.value_shares}
    for kind, vector in wide.items():
        yield from (
            (kind, content)
            for content in (vector.tobytes(), vector[7].tobytes(), vector[7].tobytes().hex().encode())
        )
    yield from (
        ("measured values", f"spend={one.measured.values}".encode()) for one in run.people[:3] if one.measured
    )
    yield from (("features", str(one.features.tolist()).encode()) for one in run.people[:3])
    yield "whole shares", b"opened: " + first


def test_the_search_would_find_what_careless_code_writes(run: Run) -> None:
    assert not [
        (kind, content[:80])
        for kind, content in leaks(run)
        if not any(form in content for form in run.forms[kind])
    ]


def test_errors_were_provoked_where_secrets_are_handled(run: Run) -> None:
    dropped = json.loads(run.seen["what was dropped"])
    assert [sum(one.values()) for one in dropped] == [len(run.broken)] * 2
    log = run.fleet.log(HELPERS[1])
    assert "a stored dataset cannot be read: InvalidTag" in log
    assert "Traceback" in log
    errors = run.seen["errors of a damaged dataset"].decode()
    assert "Traceback" not in errors


def test_the_search_finds_what_is_there(run: Run) -> None:
    """The same search over what may hold secrets: it does."""
    keys = (run.fleet.data("helper-0") / "keys.json").read_bytes()
    assert any(form in keys for form in run.forms["keys"])
    names = [name for name, _ in places(run)]
    for expected in (
        "helper-0.log",
        "adserver.log",
        "helper-0/ledger.sqlite3",
        "metrics of helper-1",
        "errors",
        "errors of a damaged",
    ):
        assert any(name.startswith(expected) for name in names), expected
    assert any("datasets" in name for name in names)
    decoded = [
        json.loads(line) for line in run.fleet.log("helper-0").splitlines() if line.startswith('{"time"')
    ]
    assert any(
        line["message"].startswith("job closed") or "dataset committed" in line["message"] for line in decoded
    )


def test_logs_name_traces_and_metrics_count_what_happened(run: Run) -> None:
    assert '"name": "maskedlark.v1.Helper/PrepareDataset"' in run.fleet.log("helper-0")
    assert '"name": "job"' in run.fleet.log("adserver")
    metrics = run.seen["metrics of helper-0 after the work"].decode()
    assert f'helper_shares_opened_total{{outcome="admitted"}} {REPORTS}.0' in metrics
    assert "helper_rounds_answered_total 4.0" in metrics
    assert "helper_budget_left{" in metrics
    assert (
        f'adserver_reports_total{{outcome="accepted"}} {REPORTS + len(run.broken)}.0'
        in run.seen["metrics of adserver after the work"].decode()
    )


def test_a_jobs_spans_at_all_three_parties_are_one_trace(run: Run) -> None:
    spans = run.spans_of("adserver")
    [job] = [one for one in spans if one.name == "job"]
    asked = [one for one in spans if one.trace_id == job.trace_id and one is not job]
    assert {one.parent_id for one in asked} == {job.span_id}
    assert_answered(run, asked)
    assert [one.name for one in asked if one.is_answered].count("RunRound") == 2 * 3


@pytest.mark.parametrize(
    ("command", "name", "methods"),
    [
        ("dataset seal", "seal dataset", {"PrepareDataset", "CommitDataset"}),
        ("aggregate", "aggregate", {"RunQuery"}),
    ],
)
def test_a_commands_spans_and_what_both_helpers_did_for_it_are_one_trace(
    run: Run, command: str, name: str, methods: set[str]
) -> None:
    [root] = [one for one in run.spans[command] if one.name == name]
    asked = [one for one in run.spans[command] if one is not root]
    assert root.parent_id is None
    assert {(one.trace_id, one.parent_id) for one in asked} == {(root.trace_id, root.span_id)}
    assert {one.name for one in asked} == methods
    assert_answered(run, asked)


def assert_answered(run: Run, asked: list[Span]) -> None:
    """Each call was answered by a helper in a span below the call's own, as many by either.

    On a busy machine a call may have been made again.
    """
    by_id, calls = {one.span_id: one for one in asked}, [one for one in asked if one.is_answered]
    answers: dict[str, str] = {}
    for helper in HELPERS:
        below = [one for one in run.spans_of(helper) if one.trace_id == asked[0].trace_id]
        assert all(one.parent_id is not None and by_id[one.parent_id].name == one.name for one in below)
        answers |= {str(one.parent_id): helper for one in below}
    assert Counter(answers[one.span_id] for one in calls) == dict.fromkeys(HELPERS, len(calls) // 2)


def test_a_helper_that_crashes_leaves_no_core_file(run: Run) -> None:
    pid = run.fleet.pid("helper-1")
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert next(line for line in limits.splitlines() if "core file" in line).split()[4:6] == ["0", "0"]
    os.kill(pid, signal.SIGABRT)
    time.sleep(1.0)
    assert not [
        path for path in (*Path.cwd().glob("core*"), *run.fleet.folder.rglob("core*")) if path.is_file()
    ]
    run.fleet.kill("helper-1")
    run.fleet.start_helper(1)
