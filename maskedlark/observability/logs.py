"""Logs as text for people or as JSON lines for programs, with the trace that a line belongs to."""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum, unique
from typing import Final

from opentelemetry import trace

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@unique
class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


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
        return json.dumps(line)


def configure_logging(log_format: LogFormat) -> None:
    """Send this process's log to standard error. Called once, by the command that serves."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
