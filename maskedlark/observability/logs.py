"""Logs as text for people or as JSON lines for programs, with the trace that a line belongs to.

Clients can cause any number of warnings, for example with bytes that are not HTTP: they are limited by
rate.
"""

import json
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum, unique
from time import monotonic
from typing import Final, TextIO

from maskedlark.escape import DELETE, SHOWN_DELETE, escape

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LOG = logging.getLogger(__name__)
BURST_LINES: Final = 20
REFILL_S: Final = 5.0


@unique
class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class _TextFormatter(logging.Formatter):
    """A line for each record, then its traceback, indented, so that foreign text cannot imitate a record."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's text without control characters but line ends."""
        line, *traceback = super().format(_in_one_line(record)).split("\n")
        return "\n".join([escape(line), *(f"  {escape(one)}" for one in traceback)])


class _JsonFormatter(logging.Formatter):
    """One JSON object a line.

    Time, level, logger, message; of an error also its traceback; trace and span where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        # Here, because `--help` of a server works without the extra of its party; so does the line that says
        # that the extra is missing
        with suppress(ModuleNotFoundError):
            from opentelemetry import trace

            # Public ids: they join a line to its trace.
            span = trace.get_current_span().get_span_context()
            if span.is_valid:
                line |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        # In ASCII: a character that reorders or hides text becomes an escape too.
        return json.dumps(line).replace(DELETE, SHOWN_DELETE)


@dataclass(slots=True)
class _LineBudget:
    """What one statement may still write.

    Attributes:
        lines: How many lines at `at_s`; one more for each `REFILL_S` since, up to `BURST_LINES`.
        at_s: When `lines` was counted.
        dropped: Lines that were not written since the last one that was.
    """

    lines: float
    at_s: float
    dropped: int = 0


class _LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes what is logged, but of warnings and errors from one statement only `BURST_LINES` in a row.

    After these, one each `REFILL_S` seconds, with the number of those that were dropped before it.
    """

    def __init__(self, stream: TextIO, elapsed: Callable[[], float] = monotonic) -> None:
        super().__init__(stream)
        self._elapsed = elapsed
        # Bounded by the number of statements in the code, so nothing has to be forgotten.
        self._budgets: dict[tuple[str, int], _LineBudget] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless its statement has used up its lines."""
        if record.levelno >= logging.WARNING:
            # By the statement and not by its text: what a client wrote must not earn it new lines.
            now_s = self._elapsed()
            budget = self._budgets.setdefault(
                (record.pathname, record.lineno), _LineBudget(lines=BURST_LINES, at_s=now_s)
            )
            budget.lines = min(BURST_LINES, budget.lines + (now_s - budget.at_s) / REFILL_S)
            budget.at_s = now_s
            if budget.lines < 1.0:
                budget.dropped += 1
                return
            budget.lines -= 1.0
            if budget.dropped:
                super().emit(_say_dropped(record, budget.dropped))
                budget.dropped = 0
        super().emit(record)


def _say_dropped(following: logging.LogRecord, count: int) -> logging.LogRecord:
    """Return a record that says how many lines like the following one were dropped."""
    said = logging.makeLogRecord({"name": following.name, "levelno": following.levelno})
    said.levelname, said.msg, said.args = following.levelname, "dropped %d lines like the next one", (count,)
    return said


def _in_one_line(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record with its message escaped; the one that other handlers get stays as it is."""
    own = copy(record)
    # The arguments are in the message by now: a second formatting would read a client's % as a directive.
    own.msg, own.args = escape(record.getMessage()), None
    return own


def configure_logging(log_format: LogFormat) -> None:
    """Send this process's log to standard error. Called once, by the command that serves."""
    handler = _LimitedHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format is LogFormat.JSON else _TextFormatter())
    # By force: a library may have set up logging as it loaded.
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # Python would write them to standard error itself, unescaped.
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_end


def logs_json() -> bool:
    """Return whether this process's log is JSON: what reads it then expects no other line."""
    return any(isinstance(one.formatter, _JsonFormatter) for one in logging.getLogger().handlers)


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    """Log what ended a thread; Python would print its message as it is."""
    if ended.exc_type is not SystemExit and ended.exc_value is not None:
        _LOG.error("a bug ended a thread", exc_info=ended.exc_value)
