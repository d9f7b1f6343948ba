"""How long a test waits before it says that something hangs: longer than the busiest machine needs.

No test claims a time. What must not take long is counted, measured in processor time
(`time.process_time`), or compared with something that would take longer than `HANGS_S`.
"""

from typing import Final

HANGS_S: Final = 600.0
"""More than pytest's `timeout`, which comes first in `make test` and shows where every thread stands."""
