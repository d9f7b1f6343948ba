"""Objects in a store: written once, read whole, never changed. So segments and reports leave a machine.

    store = Retrying(open_bucket("s3://bucket/prefix"))
    store.put(name, content)                     # refused if the name is taken
    content = store.read_exactly(name, num_bytes, digest)  # these bytes or a typed error

`maskedlark.runtime.bucket` gives stores by URL. A store that fails now and then is asked again, a bounded
number of times; what it gives is compared with the digest that the caller kept elsewhere.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from random import SystemRandom
from typing import Final, Protocol, TypeVar

from maskedlark.errors import HelperUnavailable
from maskedlark.frozen import frozen

MAX_TRIES: Final = 6
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 2.0
RETRY_AFTER_S: Final = 5.0
MAX_READS: Final = 3
"""How often an object is read whose bytes are not the expected ones: some may have been lost on the way."""

_Result = TypeVar("_Result")


class StoreFailed(Exception):
    """One request failed; the same one may succeed later. Local: callers of `Retrying` never see it."""


class ObjectExists(Exception):
    """The name is taken: objects are never written over."""


class ObjectLost(Exception):
    """An object is missing, or its bytes are not those that were put."""


class ObjectTooLong(ObjectLost):
    """An object has more bytes than were put; none of them was read."""


@frozen
class Listed:
    """What a store says of an object.

    Attributes:
        name: As it was put.
        num_bytes: How long it is.
        modified_s: When it was put, by the store's clock, in Unix seconds.
    """

    name: str
    num_bytes: int
    modified_s: float


class ObjectStore(Protocol):
    """Objects by name. Safe to call from many threads.

    Every method raises `StoreFailed` if the store cannot be reached, refuses, or answers with an error.
    """

    def put(self, name: str, content: bytes) -> None:
        """Write an object, whole or not at all.

        Raises:
            ObjectExists: the name is taken; that object stays as it is.
        """

    def get(self, name: str, most_bytes: int) -> bytes:
        """Read an object.

        Raises:
            ObjectLost: no object has this name.
            ObjectTooLong: it is longer; nothing of it is read.
        """

    def list(self, folder: str, after: str = "") -> Iterator[list[Listed]]:
        """List the objects of a folder, in pages; only those whose names come after one."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; names that are not there are no error."""


class Retrying:
    """A store whose requests are repeated: `MAX_TRIES` in all, with waits that grow and are drawn at random.

    Its methods are those of `ObjectStore`, but for the error: `HelperUnavailable` once the tries are used up.
    A put is not repeated here: a name may be taken by the try that failed, so each try needs a fresh one.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        sleep: Callable[[float], object] = time.sleep,
        whose: str = "this helper",
        tries: int = MAX_TRIES,
    ) -> None:
        """Wrap a store; nothing is read from it yet.

        Args:
            store: Its requests are repeated.
            sleep: Waits between two tries.
            whose: Named in the error once the tries are used up.
            tries: How many, at most.
        """
        self._store = store
        self._sleep = sleep
        self._whose = whose
        self._tries = tries
        self._random = SystemRandom()

    def put_fresh(self, fresh_name: Callable[[], str], content: bytes) -> str:
        """Write an object under a name that is made anew for each try; the name that it got."""

        def put() -> str:
            name = fresh_name()
            try:
                self._store.put(name, content)
            except ObjectExists:  # what lies between may have sent a put twice
                raise StoreFailed("ObjectExists") from None
            return name

        return self._try(put)

    def get(self, name: str, most_bytes: int) -> bytes:
        """Read an object; `ObjectLost` as of a store."""
        return self._try(lambda: self._store.get(name, most_bytes))

    def read_exactly(self, name: str, num_bytes: int, digest: bytes) -> bytes:
        """Read an object, and check that its bytes are those that were put.

        Args:
            name: Its name.
            num_bytes: How many were put; of a longer object nothing is read.
            digest: SHA-256 of the bytes that were put.

        Raises:
            ObjectLost: it is missing, cut, altered, or another one, also when it is read again.
            HelperUnavailable: the store cannot be read at the moment.
        """
        for _ in range(MAX_READS):
            with suppress(ObjectTooLong):
                content = self.get(name, num_bytes)
                if sha256(content).digest() == digest:
                    return content
        raise ObjectLost("an object is not the one that was put")

    def list(self, folder: str) -> Iterator[list[Listed]]:
        """List the objects of a folder, in pages, resuming after a page that fails."""
        after, tries = "", 0
        while True:
            try:
                for page in self._store.list(folder, after):
                    yield page
                    after, tries = max([after, *(one.name for one in page)]), 0
                return
            except StoreFailed as error:
                tries += 1
                if tries == self._tries:
                    raise self._unavailable(error) from None
                self._sleep(self._random.uniform(0, min(FIRST_WAIT_S * 2**tries, LONGEST_WAIT_S)))

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; names that are not there are no error."""
        doomed = list(names)
        if doomed:
            self._try(lambda: self._store.delete(doomed))

    def _try(self, request: Callable[[], _Result]) -> _Result:
        wait_s = FIRST_WAIT_S
        for _ in range(self._tries - 1):
            try:
                return request()
            except StoreFailed:
                # A random wait: callers that failed together do not come back together.
                self._sleep(self._random.uniform(0, wait_s))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        try:
            return request()
        except StoreFailed as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: StoreFailed) -> HelperUnavailable:
        return HelperUnavailable(
            f"{self._whose} cannot reach its object storage ({error}); ask again", retry_after_s=RETRY_AFTER_S
        )
