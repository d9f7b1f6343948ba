"""Where spans go: what an option says, without what tracing itself needs."""

from enum import StrEnum, unique


@unique
class Traces(StrEnum):
    """Where spans go: nowhere, to standard error, where they mix with no result, or to a collector.

    OTLP goes where the OTEL_EXPORTER_OTLP_* variables say, and needs the extra `traces`.
    """

    NONE = "none"
    CONSOLE = "console"
    OTLP = "otlp"
