"""The search for what must be nowhere in Ray nor in a bucket, and a build that puts it there.

Searched are Ray's folder with its logs and spilled objects, shared memory, files that are deleted and open,
the memory of its daemons (the GCS among them), what the helper logged, and the bucket. A search that finds
nothing may be a search that does not look: so it is made again beside a naive build that hands Ray each kind
of secret as it is, and has to find every kind.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:  # it needs the extra `ray`, which the search does without
    from tests.helper.executors.ray_machines import Machines

_CANARY_BYTES = 64
"""Of longer secrets, only so much of their beginning is looked for."""
_BLOCK = 1 << 20
_EMPTY = bytes(_BLOCK + _CANARY_BYTES)
_MAX_SPAN = 1 << 28


@contextmanager
def in_the_clear(secrets: Mapping[str, Sequence[bytes]], bucket: Path) -> Iterator[None]:
    """What a build does that hands Ray and the bucket what it computes with, as it is.

    Records go by shared memory and into the bucket; keys, model and noise as arguments of an actor, which the
    GCS keeps; the workers' key as an environment.
    """

    import ray  # needs the extra `ray`

    class Naive:
        def __init__(self, *keys: bytes) -> None:
            self.keys = keys

        def total(self, *parts: bytes) -> bytes:  # the head takes nothing but bytes
            return b"%d" % sum(map(len, parts))

    large = ("features", "mask shares")
    line, _ = secrets["workers' key"]
    small = [one for kind, found in secrets.items() if kind not in large for one in found if one != line]
    remote: Any = ray.remote(num_cpus=0, runtime_env={"env_vars": {"WORKERS_KEY": line.decode()}})
    actor = remote(Naive).remote(*small)
    references = [ray.put(b"".join(secrets[kind])) for kind in large]
    ray.get(actor.total.remote(*references))
    (bucket / "naive").write_bytes(b"".join(secrets["bucket's features"]))
    yield
    ray.kill(actor)
    (bucket / "naive").unlink()
    del references


def found_in(places: Iterable[bytes], secrets: Mapping[str, Sequence[bytes]]) -> tuple[Counter[str], int]:
    """How many secrets of each kind are found, and in how many bytes they were looked for."""
    wanted = {one[:_CANARY_BYTES]: kind for kind, several in secrets.items() for one in several}
    found: set[bytes] = set()
    total = 0
    for content in places:
        total += len(content)
        for start in range(0, len(content), _BLOCK):
            block = content[start : start + _BLOCK + _CANARY_BYTES]
            if block != _EMPTY[: len(block)]:  # most of shared memory is
                found.update(secret for secret in wanted.keys() - found if secret in block)
    return Counter(wanted[secret] for secret in found), total


def kept(machines: "Machines", bucket: Path, log: Path) -> Iterator[bytes]:
    """All that Ray keeps of this cluster, all objects of a bucket, and a log."""
    shared = Path("/dev/shm")  # noqa: S108 # where Ray keeps objects
    for path in (log, *machines.session.rglob("*"), *bucket.rglob("*"), *shared.iterdir()):
        if path.is_file() and not path.is_symlink() and not path.name.startswith("PostgreSQL"):
            with suppress(OSError):
                yield path.read_bytes()
    for pid in _daemons(machines):
        yield from _open_files(pid)
        yield from _memory(pid)


def _daemons(machines: "Machines") -> list[int]:
    """The raylets and the GCS of this cluster."""
    return [
        process.pid
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] in ("raylet", "gcs_server")
        and any(machines.session.name in word for word in process.info["cmdline"] or ())
    ]


def _open_files(pid: int) -> Iterator[bytes]:
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if "deleted" in str(link.readlink()):
                    yield link.read_bytes()


def _memory(pid: int) -> Iterator[bytes]:
    """What a process can write to, as it is now."""
    with suppress(OSError), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights = line.split()[:2]
            start, end = (int(one, 16) for one in span.split("-"))
            if rights.startswith("rw") and end - start <= _MAX_SPAN:
                with suppress(OSError, ValueError, OverflowError):
                    memory.seek(start)
                    yield memory.read(end - start)
