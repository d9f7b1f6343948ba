"""Counts the machine instructions that compiled loops execute, by stepping a child process through them.

    counter = InstructionCounter(loops)
    counter.count(work)               # a child does the work; instructions by name of the loop

The child runs freely up to the first instruction of a loop, and one instruction at a time until it returns.
What a loop calls outside its own code (memory, numba's own library) runs freely again. So the count is exact
and knows no clock. It needs a 64-bit Linux on x86 that lets a process trace its children.
"""

import ctypes
import os
import platform
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

_TRACE_ME, _PEEK, _PEEK_USER, _POKE, _POKE_USER, _CONTINUE, _STEP = 0, 1, 3, 4, 6, 7, 9
_RIP, _RSP = 8 * 16, 8 * 19  # of `struct user_regs_struct`
_BREAKPOINT = 0xCC
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.restype = ctypes.c_long
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong]


def can_step() -> bool:
    """Whether this machine lets a process step its child."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    child = os.fork()
    if child == 0:
        os._exit(0 if _LIBC.ptrace(_TRACE_ME, 0, 0, 0) == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


class InstructionCounter:
    """Steps children through some loops.

    Args:
        loops: Compiled loops by name; only what is compiled when a child is born is seen.
    """

    def __init__(self, loops: Mapping[str, Any]) -> None:
        self._loops = loops

    def count(self, work: Callable[[], object]) -> Counter[str]:
        """Return how many instructions each loop executes while a child of this process does the work."""
        entries = dict(_entries(self._loops))
        places = os.sched_getaffinity(0)
        # both wait for each other at each step, which is twice as fast on one core
        os.sched_setaffinity(0, {min(places)})
        try:
            child = os.fork()
            if child == 0:
                _work_traced(work)
            return _Traced(child, _compiled_code()).count(entries)
        finally:
            os.sched_setaffinity(0, places)


def _entries(loops: Mapping[str, Any]) -> Iterable[tuple[int, str]]:
    """Where each compiled form of each loop begins, as the interpreter calls it."""
    for name, loop in loops.items():
        for compiled in loop.overloads.values():
            wrapper = compiled.fndesc.llvm_cpython_wrapper_name
            yield compiled.library.get_pointer_to_function(wrapper), name


def _compiled_code() -> list[range]:
    """Where machine code lies that came from no file."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, inode, *_ = line.split()
        if "x" in access and inode == "0" and "[" not in line:
            first, last = (int(end, 16) for end in addresses.split("-"))
            found.append(range(first, last))
    return found


def _work_traced(work: Callable[[], object]) -> None:
    """In the child: stop until the parent has set its breakpoints, do the work, and end."""
    status = 1
    try:
        _LIBC.ptrace(_TRACE_ME, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        work()
        status = 0
    finally:
        os._exit(status)


class _Traced:
    """A stopped child."""

    def __init__(self, child: int, code: list[range]) -> None:
        self._child, self._code = child, code
        self._wait()

    def count(self, entries: Mapping[int, str]) -> Counter[str]:
        """Let the child do its work and end."""
        counts: Counter[str] = Counter()
        words = {entry: self._set_breakpoint(entry) for entry in entries}
        while self._resume(_CONTINUE):
            entry = self._register(_RIP) - 1
            name = entries[entry]
            self._clear_breakpoint(entry, words[entry])
            counts[name] += self._step_until(self._ask(_PEEK, self._register(_RSP)))
            self._set_breakpoint(entry)
        return counts

    def _step_until(self, returned: int) -> int:
        """Step a loop to its end; gives the instructions of compiled code on the way."""
        steps = 0
        last = range(0)
        while True:
            if not self._resume(_STEP):
                raise AssertionError("the child ended within a loop")
            at = self._register(_RIP)
            if at == returned:
                return steps
            if at not in last:
                last = next((code for code in self._code if at in code), range(0))
            if last:
                steps += 1
            else:
                self._run_to(self._ask(_PEEK, self._register(_RSP)))

    def _run_to(self, address: int) -> None:
        """Run what was called up to where it returns."""
        word = self._set_breakpoint(address)
        if not self._resume(_CONTINUE):
            raise AssertionError("the child ended within a loop")
        self._clear_breakpoint(address, word)

    def _set_breakpoint(self, address: int) -> int:
        """Give the word that was there."""
        word = self._ask(_PEEK, address)
        self._ask(_POKE, address, word & ~0xFF | _BREAKPOINT)
        return word

    def _clear_breakpoint(self, address: int, word: int) -> None:
        """Where the child has just stopped."""
        self._ask(_POKE, address, word)
        self._ask(_POKE_USER, _RIP, address)

    def _register(self, place: int) -> int:
        return self._ask(_PEEK_USER, place)

    def _resume(self, how: int) -> bool:
        """Whether the child stopped again; else it has done its work."""
        self._ask(how, 0, 0)
        return self._wait()

    def _wait(self) -> bool:
        _, status = os.waitpid(self._child, 0)
        if os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) not in (signal.SIGTRAP, signal.SIGSTOP):
                raise AssertionError(f"the child got the signal {os.WSTOPSIG(status)}")
            return True
        if status != 0:
            raise AssertionError(f"the child ended with the status {status}")
        return False

    def _ask(self, request: int, address: int, value: int = 0) -> int:
        ctypes.set_errno(0)
        answer: int = _LIBC.ptrace(request, self._child, address, value)
        if answer == -1 and (error := ctypes.get_errno()):
            raise OSError(error, os.strerror(error))
        return answer & (1 << 64) - 1
