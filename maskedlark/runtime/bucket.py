"""Object storage by URL, through obstore: the extra `cluster`.

    store = open_bucket("s3://bucket/prefix")

Credentials, region and endpoint come from the environment, as obstore reads it (`AWS_ACCESS_KEY_ID`,
`AWS_REGION`, `AWS_ENDPOINT_URL`, ...). obstore is imported only once a bucket is opened.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from maskedlark.errors import InvalidSetting
from maskedlark.runtime.objects import (
    Listed,
    ObjectExists,
    ObjectLost,
    ObjectStore,
    ObjectTooLong,
    StoreFailed,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Obstore
    from obstore.store import RetryConfig

LOCAL: Final = ("file", "memory")
"""Not durable: a folder is not flushed to the disk, and memory ends with the process."""
SHARED: Final = ("s3", "gs", "az")
SCHEMES: Final = (*SHARED, *LOCAL)
_PAGE: Final = 1_000
# How S3, Google's and Azure's say that an object is missing. Any other answer of 404 is of a bucket that is
# not there, or of what stands before the store: by it all objects would seem lost.
_MISSING: Final = ("<Code>NoSuchKey</Code>", "<Code>BlobNotFound</Code>")
# `Retrying` repeats requests: two layers would multiply their waits
_NO_RETRIES: "Final[RetryConfig]" = {"max_retries": 0}


def check_bucket_url(url: str, schemes: Sequence[str] = SCHEMES) -> None:
    """Refuse text that is not a URL of object storage, or contains credentials: URLs are stored and shown.

    Args:
        url: As typed by the operator.
        schemes: Those that the URL may have.

    Raises:
        InvalidSetting: it is, and the error does not repeat it.
    """
    parts = urlsplit(url)
    if parts.scheme not in schemes:
        raise InvalidSetting(f"object storage is a URL of {', '.join(f'{one}://' for one in schemes)}")
    if parts.password is not None or parts.query:
        raise InvalidSetting("the URL of object storage holds no credentials: they come from the environment")


def open_bucket(url: str) -> ObjectStore:
    """Open the store of a URL: `s3://bucket/prefix`, `gs://`, `az://`; in tests `file://`, `memory://`.

    Nothing is asked of it yet.

    Raises:
        InvalidSetting: obstore is not installed, or the URL or what the environment says of it is wrong.
    """
    check_bucket_url(url)
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise InvalidSetting("object storage needs obstore: pip install 'masked-lark[cluster]'") from None
    try:
        if url.startswith("file:"):
            Path(urlsplit(url).path).mkdir(mode=0o700, parents=True, exist_ok=True)
        if urlsplit(url).scheme in LOCAL:
            return _Bucket(from_url(url), is_local=True)
        return _Bucket(from_url(url, retry_config=_NO_RETRIES))
    except (BaseError, OSError, ValueError) as error:
        raise InvalidSetting(f"object storage cannot be opened: {type(error).__name__}") from None


class _Bucket:
    """One store of obstore, as `maskedlark.runtime.objects.ObjectStore`."""

    def __init__(self, store: "Obstore", *, is_local: bool = False) -> None:
        self._store = store
        self._is_local = is_local

    def put(self, name: str, content: bytes) -> None:
        """Write an object; see `ObjectStore.put`."""
        import obstore

        with _map_errors(is_lost=False):
            obstore.put(self._store, name, content, mode="create", use_multipart=False)

    def get(self, name: str, most_bytes: int) -> bytes:
        """Read an object; see `ObjectStore.get`."""
        import obstore

        with _map_errors(is_local=self._is_local):
            answer = obstore.get(self._store, name)
            if answer.meta["size"] > most_bytes:
                raise ObjectTooLong("an object is longer than the one that was put")
            return bytes(answer.bytes())

    def list(self, folder: str, after: str = "") -> Iterator[list[Listed]]:
        """List a folder; see `ObjectStore.list`."""
        import obstore

        with _map_errors(is_lost=False):
            for page in obstore.list(self._store, folder, offset=after or None, chunk_size=_PAGE):
                yield [
                    Listed(
                        name=one["path"],
                        num_bytes=one["size"],
                        modified_s=one["last_modified"].timestamp(),
                    )
                    for one in page
                ]

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; see `ObjectStore.delete`."""
        import obstore

        doomed = list(names)
        try:
            with _map_errors(is_local=self._is_local):
                obstore.delete(self._store, doomed)
        except ObjectLost:  # a folder's store ends at the first name that is not there
            for name in doomed:
                with suppress(ObjectLost), _map_errors(is_local=self._is_local):
                    obstore.delete(self._store, name)


@contextmanager
def _map_errors(*, is_lost: bool = True, is_local: bool = False) -> Iterator[None]:
    """Tell obstore's errors as ours. Its messages stay here: they hold URLs and answers of the store.

    Args:
        is_lost: Whether what is not found may be an object; else it is the bucket.
        is_local: Whether no network is between, and what is not found is not there.
    """
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        yield
    except FileNotFoundError as error:
        if not is_lost or not (is_local or any(code in str(error) for code in _MISSING)):
            raise StoreFailed("the bucket is not there, or is not reached") from None
        raise ObjectLost("an object is missing") from None
    except AlreadyExistsError:
        raise ObjectExists from None
    except (BaseError, OSError) as error:
        raise StoreFailed(type(error).__name__) from None
