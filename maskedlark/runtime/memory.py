"""How much memory this process may use, and how it gives back what it no longer needs."""

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUP: Final = Path("/proc/self/cgroup")
_LIMIT_FILES: Final = ("memory.max", "memory.limit_in_bytes", "memory/memory.limit_in_bytes")


def memory_limit(groups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Return the bytes that this process may use: the machine's, or what its control group has if less.

    Args:
        groups: Where control groups are mounted.
        own: The file that names this process's group.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    folder = groups / next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    for one in (folder, *folder.parents):  # a group has no more than any group that it is in
        if one.is_relative_to(groups):
            limits += [limit for name in _LIMIT_FILES if (limit := _number(one / name)) is not None]
    return min(limits)


def _number(path: Path) -> int | None:
    """Return what a limit's file holds; None without the file, or where it says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def give_back_memory() -> None:
    """Return freed memory to the system: glibc keeps what threads freed below its threshold for mapping."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)
