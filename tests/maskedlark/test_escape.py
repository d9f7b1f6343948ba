"""What remote parties wrote reaches a terminal and a log as text, and as nothing that they obey."""

import logging
import re
import sys
import threading
from io import StringIO

import pytest

from maskedlark.errors import (
    HelperUnavailable,
    InvalidTask,
    JobReason,
    JobRefused,
    ReportReason,
    ReportRejected,
)
from maskedlark.escape import escape, escape_lines, escape_values
from maskedlark.observability.logs import LogFormat, _JsonFormatter, _TextFormatter, configure_logging
from maskedlark.terminal.exit_status import REFUSED, UNAVAILABLE, run

HOSTILE = "a\x1b[2J\x1b]0;title\x07\x9b31m\r\nERROR forged\tline\x7f\x00\u2028\u202e\u2066\ud800"
"""Escape sequences of 7 and 8 bits, C0, C1, DEL, line ends of four kinds, bidirectional controls."""
OBEYED = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def of_level(message: str, *, error: BaseException | None = None) -> logging.LogRecord:
    caught = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("helper.jobs", logging.WARNING, __file__, 1, "%s", (message,), caught)


def raised(message: str) -> ValueError:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_text_loses_what_is_obeyed_and_keeps_what_is_seen() -> None:
    assert not OBEYED.search(escape(HOSTILE))
    assert "\n" not in escape(HOSTILE)
    assert escape(escape(HOSTILE)) == escape(HOSTILE)
    assert escape("Zürich 東京 ­") == "Zürich 東京 \\xad"
    assert escape_lines("one\n  two\n") == "one\n  two\n"


def test_every_string_of_a_document_is_escaped_but_those_that_are_signed() -> None:
    sent = {HOSTILE: [{"a": HOSTILE, "bundle": HOSTILE}], "n": 1, "none": None}
    assert escape_values(sent, verbatim={"bundle"}) == {
        escape(HOSTILE): [{"a": escape(HOSTILE), "bundle": HOSTILE}],
        "n": 1,
        "none": None,
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidTask(HOSTILE), REFUSED),
        (JobRefused(JobReason.BAD_ANSWER, HOSTILE), REFUSED),
        (ReportRejected(ReportReason.MALFORMED, HOSTILE), REFUSED),
        (HelperUnavailable(HOSTILE), UNAVAILABLE),
        (ValueError(HOSTILE), REFUSED),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_command_that_fails_prints_nothing_that_is_obeyed(
    error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run(fail)
    printed = capsys.readouterr().err
    assert ended.value.code == status
    assert "ERROR forged" in printed
    assert not OBEYED.search(printed)
    assert not re.search(r"^ERROR", printed, re.MULTILINE) or isinstance(error, ValueError)


@pytest.mark.parametrize("formatter", [_TextFormatter(), _JsonFormatter()], ids=["text", "json"])
def test_a_log_line_holds_nothing_that_is_obeyed_and_forges_no_line(formatter: logging.Formatter) -> None:
    record = of_level(HOSTILE, error=raised(HOSTILE))
    line = formatter.format(record)
    assert not OBEYED.search(line)
    first, *others = line.split("\n")
    assert "ERROR forged" in first
    assert all(one.startswith("  ") for one in others)
    assert record.args == (HOSTILE,)  # what other handlers get is as it was


def test_what_ends_a_thread_is_logged_and_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(sys, "stderr", out := StringIO())
    root = logging.getLogger()
    before, level = root.handlers[:], root.level

    def fail() -> None:
        raise ValueError(HOSTILE)

    try:
        configure_logging(LogFormat.TEXT)
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.captureWarnings(False)
    assert "a bug ended a thread" in out.getvalue()
    assert not OBEYED.search(out.getvalue())
