"""The option of a server's log format, which holds from the first line on."""

from typing import Annotated

from maskedlark.observability.logs import LogFormat, configure_logging
from maskedlark.terminal.options import panel


def _begin_log(log_format: LogFormat) -> LogFormat:
    """Begin a log for programs now, so that a line of it also says which other option was refused."""
    if log_format is LogFormat.JSON:
        configure_logging(log_format)
    return log_format


LogFormatOption = Annotated[
    LogFormat,
    panel("Monitoring")(
        "Log format: text for people, or JSON for programs.", callback=_begin_log, is_eager=True
    ),
]
