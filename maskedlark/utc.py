"""The one form in which commands and messages write a moment for people.

>>> format_utc(1_796_052_000)
'2026-11-30 15:20 UTC'

Programs read Unix seconds, or ISO 8601 in logs; the dashboard's headings say the zone.
"""

from datetime import UTC, datetime
from typing import Final

_LAST_S: Final = datetime(9999, 12, 31, 23, 59, tzinfo=UTC).timestamp()


def format_utc(unix_s: float) -> str:
    """Format a moment, to the minute; one outside the years 1970 to 9999 becomes the nearer end of them."""
    # A file or a peer of somebody else's may hold any number
    return f"{datetime.fromtimestamp(max(0.0, min(unix_s, _LAST_S)), UTC):%Y-%m-%d %H:%M} UTC"
