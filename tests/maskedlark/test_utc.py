"""A moment for people says its zone, whatever number a file or a peer gave."""

import pytest

from maskedlark.utc import format_utc


@pytest.mark.parametrize(
    ("unix_s", "written"),
    [
        (1_796_052_059.9, "2026-11-30 15:20 UTC"),
        (-1, "1970-01-01 00:00 UTC"),
        (float("inf"), "9999-12-31 23:59 UTC"),
        (10**400, "9999-12-31 23:59 UTC"),
    ],
)
def test_a_moment_says_its_zone(unix_s: float, written: str) -> None:
    assert format_utc(unix_s) == written
