"""How many bytes each ad server has at this helper, on its disk and in its bucket.

    quota = StorageQuota(64 << 30, keys.vault_key, shelf.forget_overdue)
    claim = quota.claim("ads.example", "f00d.unfinished")
    claim.resize(num_bytes)                  # before they are written; raises JobRefused(QUOTA_EXCEEDED)
    claim.rename("d5...sealed")              # the file has a new name
    quota.drop(["d5...sealed"])              # it is deleted

Bytes are counted before they are written and until they are deleted, committed or not. A restart counts what
lies there: files and objects carry the tag of their ad server, so that what a crash left of a preparation is
known as well.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final, NamedTuple

from maskedlark.errors import JobReason, JobRefused

TAG_BYTES: Final = 16
"""Of the tag that stands for an ad server in the header of a file and in the name of an object."""


class _Held(NamedTuple):
    """One file, object, dataset or preparation."""

    tag: bytes
    num_bytes: int


class StorageQuota:
    """What is held, by name, and the sum for each ad server. Safe to call from many threads.

    Nothing is read from disk: the time of a check does not depend on how much is held.
    """

    def __init__(
        self,
        most_bytes: int,
        key_for: Callable[[bytes], bytes],
        make_room: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Begin with nothing held.

        Args:
            most_bytes: The most that one ad server may hold.
            key_for: See `HelperKeys.vault_key`.
            make_room: Called if an ad server has no room: forgets one of its preparations whose commit is
                overdue, and returns whether there was one.
        """
        self._most_bytes = most_bytes
        self._key_for = key_for
        self._make_room = make_room
        self._lock = Lock()
        self._held: dict[str, _Held] = {}
        self._sums = Counter[bytes]()

    @property
    def num_bytes(self) -> int:
        """The bytes of all ad servers together."""
        with self._lock:
            return self._sums.total()

    def of(self, owner: str) -> int:
        """Return the bytes of one ad server."""
        with self._lock:
            return self._sums[self.tag(owner)]

    def tag(self, owner: str) -> bytes:
        """Return `TAG_BYTES` that stand for an ad server, and that only this helper can link to it."""
        return self._key_for(b"ad server of stored bytes" + owner.encode())[:TAG_BYTES]

    def claim(self, owner: str, name: str) -> "Claim":
        """Return a claim of an ad server for what will be written, of no bytes yet.

        Args:
            owner: The host of the ad server.
            name: The name of the file or of the preparation; no other one has it.
        """
        return Claim(self, owner, name)

    def resize(self, name: str, num_bytes: int, *, owner: str, tag: bytes) -> None:
        """Set the bytes of one name of an ad server, whose tag is given, before they are written.

        Raises:
            JobRefused(QUOTA_EXCEEDED): the ad server would hold too much; nothing changes.
        """
        while (taken := self._taken_unless_set(name, tag, num_bytes)) is not None:
            # Without the lock: making room deletes objects, which comes back here to drop them.
            if not self._make_room(owner):
                raise JobRefused(
                    JobReason.QUOTA_EXCEEDED,
                    f"this helper holds at most {self._most_bytes} bytes of one ad server's datasets and "
                    f"preparations (--max-held-bytes), of which you have {taken}: commit what is "
                    "prepared, wait until datasets of expired tasks are deleted, or ask this helper's "
                    "operator for more",
                )

    def count(self, name: str, tag: bytes, num_bytes: int) -> None:
        """Count what lies there already, however much its ad server holds."""
        with self._lock:
            self._set(name, tag, num_bytes)

    def rename(self, name: str, new_name: str) -> None:
        """Move the bytes of one name to another one, whose own are gone."""
        with self._lock:
            held = self._held.get(name)
            if held is not None and name != new_name:
                self._set(new_name, held.tag, held.num_bytes)
                self._drop(name)

    def drop(self, names: Iterable[str]) -> None:
        """Stop counting what was deleted; unknown names are ignored."""
        with self._lock:
            for name in names:
                self._drop(name)

    def _taken_unless_set(self, name: str, tag: bytes, num_bytes: int) -> int | None:
        """Set the bytes of one name and return None, or return what is taken if there is no room for them."""
        with self._lock:
            taken = self._sums[tag]
            before = self._held.get(name)
            if taken - (before.num_bytes if before else 0) + num_bytes > self._most_bytes:
                return taken
            self._set(name, tag, num_bytes)
            return None

    def _set(self, name: str, tag: bytes, num_bytes: int) -> None:
        """Set an entry, with the lock held."""
        self._drop(name)
        self._held[name] = _Held(tag, num_bytes)
        self._sums[tag] += num_bytes

    def _drop(self, name: str) -> None:
        """Drop an entry, with the lock held."""
        held = self._held.pop(name, None)
        if held is not None:
            self._sums[held.tag] -= held.num_bytes
            # Else the sums would grow with every ad server that was ever here.
            if not self._sums[held.tag]:
                del self._sums[held.tag]


class Claim:
    """What one preparation holds of its ad server's quota. Used by one thread at a time."""

    def __init__(self, quota: StorageQuota, owner: str, name: str) -> None:
        self._quota = quota
        self._owner = owner
        self._name = name
        self.tag: Final = quota.tag(owner)

    def resize(self, num_bytes: int) -> None:
        """Hold so many bytes, before they are written.

        Raises:
            JobRefused(QUOTA_EXCEEDED): the ad server would hold too much; nothing changes.
        """
        self._quota.resize(self._name, num_bytes, owner=self._owner, tag=self.tag)

    def rename(self, name: str) -> None:
        """Hold the bytes under another name, whose own are gone."""
        self._quota.rename(self._name, name)
        self._name = name

    def end(self) -> None:
        """Hold nothing any more: what was written is deleted, or counted elsewhere."""
        self._quota.drop([self._name])
