"""Object stores for tests: one in memory, and one that fails."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from threading import Lock
from typing import TypeVar

from maskedlark.runtime.objects import (
    Listed,
    ObjectExists,
    ObjectLost,
    ObjectStore,
    ObjectTooLong,
    StoreFailed,
)

_Result = TypeVar("_Result")


@dataclass
class InMemory:
    """Objects in a dictionary, with the moments at which they were put."""

    now: float = 0.0
    objects: dict[str, bytes] = field(default_factory=dict)
    modified_s: dict[str, float] = field(default_factory=dict)

    def put(self, name: str, content: bytes) -> None:
        if name in self.objects:
            raise ObjectExists
        self.objects[name] = content
        self.modified_s[name] = self.now

    def get(self, name: str, most_bytes: int) -> bytes:
        if name not in self.objects:
            raise ObjectLost("missing")
        if len(self.objects[name]) > most_bytes:
            raise ObjectTooLong
        return self.objects[name]

    def list(self, folder: str, after: str = "") -> Iterator[list[Listed]]:
        for name in sorted(self.objects):
            if name.startswith(f"{folder}/") and name > after:
                content, modified_s = self.objects[name], self.modified_s[name]
                yield [Listed(name=name, num_bytes=len(content), modified_s=modified_s)]

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.objects.pop(name, None)


@dataclass
class Faulty:
    """A store of whose requests some fail, before or after they had their effect.

    Of what is read some is cut, and some is another object.
    """

    store: ObjectStore
    seed: int
    fails: float = 0.0
    cuts: float = 0.0
    swaps: float = 0.0
    faults: int = 0
    _lock: Lock = field(default_factory=Lock)
    _seen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def put(self, name: str, content: bytes) -> None:
        self._request(lambda: self.store.put(name, content))

    def get(self, name: str, most_bytes: int) -> bytes:
        with self._lock:
            self._seen.append(name)
            other = self._random.choice(self._seen)
        if self._happens(self.swaps) and other != name:
            name = other
        content = self._request(lambda: self.store.get(name, most_bytes))
        return content[: len(content) // 2] if self._happens(self.cuts) else content

    def list(self, folder: str, after: str = "") -> Iterator[list[Listed]]:
        for page in self.store.list(folder, after):
            self._request(lambda: None)
            yield page

    def delete(self, names: Iterable[str]) -> None:
        self._request(lambda: self.store.delete(names))

    def _request(self, request: Callable[[], _Result]) -> _Result:
        if self._happens(self.fails / 2):
            raise StoreFailed("Injected")
        result = request()
        if self._happens(self.fails / 2):
            raise StoreFailed("Injected")
        return result

    def _happens(self, chance: float) -> bool:
        with self._lock:
            happens = self._random.random() < chance
            self.faults += happens
        return happens
