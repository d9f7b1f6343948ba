"""Locks that know their holder: a test fails wherever shared state is used without the lock over it.

    UNDER_LOCKS = (Guarded(OpenTasks, "_lock", ("_ends",)),)

A lock that is missing shows in almost no run of threads, but in every use of what it should be over. So the
classes below are watched while all tests of a folder run, whatever these test.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Lock, get_ident
from types import FrameType
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Guarded:
    """What one class uses under its lock only.

    Attributes:
        cls: The class.
        lock: The attribute that holds its lock or condition.
        state: Attributes and methods that are used under the lock.
        written: Attributes that are assigned under the lock, and may be read without it.
    """

    cls: type[Any]
    lock: str
    state: tuple[str, ...]
    written: tuple[str, ...] = ()


class OwnedLock:
    """A lock that knows which thread holds it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holder: int | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        is_taken = self._lock.acquire(blocking, timeout)
        if is_taken:
            self._holder = get_ident()
        return is_taken

    def release(self) -> None:
        self._holder = None
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def is_mine(self) -> bool:
        return self._holder == get_ident()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class OwnedCondition(Condition):
    """A condition that knows which thread holds its lock; like any other, one thread may enter it twice."""

    def is_mine(self) -> bool:
        is_owned: bool = self._is_owned()  # type: ignore[attr-defined]  # the interpreter's own, of any lock
        return is_owned


@contextmanager
def watched(all_guarded: Sequence[Guarded]) -> Iterator[list[str]]:
    """Watch every object of the classes that is made during a `with` block; gives the uses without a lock."""
    unguarded: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for guarded in all_guarded:
            _watch(patch, guarded, unguarded.append)
        yield unguarded


def _watch(patch: pytest.MonkeyPatch, guarded: Guarded, report: Callable[[str], None]) -> None:
    cls: Any = guarded.cls
    name = guarded.lock
    begin, read, write = cls.__init__, cls.__getattribute__, cls.__setattr__
    read_under, written_under = set(guarded.state), {*guarded.state, *guarded.written}

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        is_condition = isinstance(read(self, name), Condition)
        object.__setattr__(self, name, OwnedCondition() if is_condition else OwnedLock())

    def check(self: Any, attribute: str, frame: FrameType) -> None:
        try:
            lock = read(self, name)
        except AttributeError:
            return  # it is being made
        is_own = frame.f_globals.get("__name__") == cls.__module__ and frame.f_code.co_name != "__init__"
        if is_own and isinstance(lock, OwnedLock | OwnedCondition) and not lock.is_mine():
            report(
                f"{cls.__name__}.{attribute} without {name}: {frame.f_code.co_name}, line {frame.f_lineno}"
            )

    def getattribute(self: Any, attribute: str) -> Any:
        if attribute in read_under:
            check(self, attribute, _caller())
        return read(self, attribute)

    def setattribute(self: Any, attribute: str, value: Any) -> None:
        if attribute in written_under:
            check(self, attribute, _caller())
        write(self, attribute, value)

    patch.setattr(cls, "__init__", init)
    patch.setattr(cls, "__getattribute__", getattribute)
    patch.setattr(cls, "__setattr__", setattribute)


def _caller() -> FrameType:
    """Return the first frame outside this file: a class may be watched for several locks."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    assert frame is not None
    return frame


def guards(*guarded: Guarded) -> Any:
    """Return the fixture `unguarded` of a conftest: the uses of this state without its lock, so far."""

    @pytest.fixture(scope="session")
    def unguarded() -> Iterator[list[str]]:
        with watched(guarded) as found:
            yield found

    return unguarded


@pytest.fixture(autouse=True)
def shared_state_is_used_under_its_lock(unguarded: list[str]) -> Iterator[None]:
    """Fail each test that used what `guards` names without its lock."""
    unguarded.clear()
    yield
    assert not unguarded
