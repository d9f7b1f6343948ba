"""Object stores for tests: one in memory, and one that fails."""

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
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


class FilesAsObjects(MutableMapping[str, bytes]):
    """The files of helpers, by the names that their objects have in a ledger."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders

    def _files(self) -> dict[str, Path]:
        files = [path for folder in self._folders for path in sorted(folder.glob("*.sealed"))]
        return {path.stem.replace(".", "/"): path for path in files}

    def __getitem__(self, name: str) -> bytes:
        return self._files()[name].read_bytes()

    def __setitem__(self, name: str, content: bytes) -> None:
        self._files()[name].write_bytes(content)

    def __delitem__(self, name: str) -> None:
        self._files()[name].unlink()

    def __iter__(self) -> Iterator[str]:
        return iter(self._files())

    def __len__(self) -> int:
        return len(self._files())
