"""Fetch MNIST from its public mirrors, and keep only what has the right SHA-256.

The checksums are of the uncompressed idx files, since mirrors pack them differently.
"""

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx

from browser_sim.bounded_client import BoundedClient
from browser_sim.endpoint import REQUEST_TIMEOUT_S, read_limited
from browser_sim.source import InvalidSource
from maskedlark.encoding.idx import MAX_IDX_BYTES, TEST, TRAIN, unpack
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.rpc.certificate_faults import explain_rejection

_CONNECT_S: Final = 5.0
MIRRORS: Final = (
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
)


@frozen
class IdxFile:
    """One file of the data set.

    Attributes:
        name: Without .gz.
        digest: SHA-256 of the uncompressed file, in hex.
    """

    name: str
    digest: str


MNIST_FILES: Final = (
    IdxFile(name=TRAIN[0], digest="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    IdxFile(name=TRAIN[1], digest="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    IdxFile(name=TEST[0], digest="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    IdxFile(name=TEST[1], digest="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)


def download(
    folder: Path,
    *,
    mirrors: Sequence[str] = MIRRORS,
    files: Sequence[IdxFile] = MNIST_FILES,
    on_file: Callable[[str], None] = lambda _: None,
) -> None:
    """Put the files into a folder, packed as they came. A file that is there and right is left alone.

    Guarantees: no file appears under its name before its checksum was right.

    Raises:
        InvalidSource: no mirror has a file, or what they have differs from what it should be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with session() as client:
        for wanted in files:
            path = folder / f"{wanted.name}.gz"
            # Files that are there are checked too: a damaged one is fetched again.
            if not (path.is_file() and _right(wanted, path.read_bytes())):
                _fetch_one(client, path, wanted, mirrors)
            on_file(path.name)


def _fetch_one(client: httpx.Client, path: Path, wanted: IdxFile, mirrors: Sequence[str]) -> None:
    packed = fetch_file(
        client, mirrors, path.name, most=MAX_IDX_BYTES, digest=wanted.digest, right=partial(_right, wanted)
    )
    # Under its own name only when whole: a run that is stopped leaves no file that the next one would trust.
    unfinished = path.with_suffix(".partial")
    unfinished.write_bytes(packed)
    unfinished.replace(path)


def fetch_file(
    client: httpx.Client,
    mirrors: Sequence[str],
    name: str,
    *,
    most: int,
    digest: str,
    right: Callable[[bytes], bytes | None],
) -> bytes:
    """Download a file from the first mirror that has the right one.

    Args:
        client: From `session`.
        mirrors: Folders, as URLs, in the order in which they are asked.
        name: The file's, below each mirror.
        most: A longer body is no answer.
        digest: Of the file; for the message.
        right: What is kept of a body; None where it is not the file.

    Raises:
        InvalidSource: none has it; the message says what each answered.
    """
    failures = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{name}"
        why = "no answer"
        try:
            body = _fetch(client, url, most)
        except httpx.HTTPError as error:
            body, why = None, explain_rejection(error, " (SSL_CERT_FILE)") or why
        kept = None if body is None else right(body)
        if kept is not None:
            return kept
        if body is not None:
            why = f"the file does not have the expected SHA-256 {digest}"
        failures.append(f"{url}: {why}")
    raise InvalidSource("; ".join(failures))


def session() -> httpx.Client:
    """Create a client for public files that soon abandons an unreachable mirror."""
    timeout = httpx.Timeout(REQUEST_TIMEOUT_S, connect=_CONNECT_S)
    # Redirects are harmless here: what comes is kept only by its digest.
    return BoundedClient(timeout=timeout, follow_redirects=True)


def _fetch(client: httpx.Client, url: str, most: int) -> bytes | None:
    """Return the body; None if the mirror does not have it, or it exceeds `most` bytes."""
    with client.stream("GET", url) as response:
        return read_limited(response, most) if response.status_code == 200 else None


def _right(wanted: IdxFile, packed: bytes) -> bytes | None:
    try:
        return packed if sha256(unpack(packed, wanted.name)).hexdigest() == wanted.digest else None
    except InvalidTask:
        return None
