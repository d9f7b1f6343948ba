"""Logs as text for people or as JSON lines for programs, with the trace that a line belongs to."""

import json
import logging
import sys
import threading
from copy import copy
from datetime import UTC, datetime
from enum import StrEnum, unique
from typing import Final

from opentelemetry import trace

from maskedlark.escape import DELETE, SHOWN_DELETE, escape

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LOG = logging.getLogger(__name__)


@unique
class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class TextFormatter(logging.Formatter):
    """A line for each record, then its traceback, indented, so that foreign text cannot imitate a record."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's text without control characters but line ends."""
        line, *traceback = super().format(_in_one_line(record)).split("\n")
        return "\n".join([escape(line), *(f"  {escape(one)}" for one in traceback)])


class JsonFormatter(logging.Formatter):
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
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            line |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        return json.dumps(line).replace(DELETE, SHOWN_DELETE)


def _in_one_line(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record with its message escaped; the one that other handlers get stays as it is."""
    own = copy(record)
    own.msg, own.args = escape(record.getMessage()), None
    return own


def configure_logging(log_format: LogFormat) -> None:
    """Send this process's log to standard error. Called once, by the command that serves."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_end


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    """Log what ended a thread; Python would print its message as it is."""
    if ended.exc_type is not SystemExit and ended.exc_value is not None:
        _LOG.error("a bug ended a thread", exc_info=ended.exc_value)
