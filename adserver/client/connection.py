"""A client's ad server: one of this machine with both helpers, or another one's admin API."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import typer

from adserver.client.local import LocalAdServer
from adserver.client.remote import RemoteAdServer
from adserver.peers.connect import Peers
from adserver.peers.deadlines import ROUND_DEADLINE_S
from adserver.peers.retrying import BRIEF, Backoff
from adserver.store.datasets import Dataset
from maskedlark.errors import InvalidTask
from maskedlark.reports.task import Task
from maskedlark.rpc.tls_files import TlsFiles

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer

_VARIABLES: Final = ("ADSERVER_DATA", "ADSERVER_HELPER_0", "ADSERVER_HELPER_1")
# What commands take for yes: a shell that gives them TLS must not give a Client plaintext.
_YES: Final = ("1", "true", "t", "yes", "y", "on")


class Connection:
    """A connection to an ad server. Use it in a `with`, or close it.

    Attributes:
        server: Every operation of the ad server, as commands use them.
    """

    server: "AdServer"

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        helpers: tuple[str, str] | None = None,
        url: str | None = None,
        token: str = "",
        ca: str | Path | None = None,
        insecure: bool = False,
        tls: TlsFiles | None = None,
        database: str | None = None,
        deadline_s: float = 60.0,
        round_deadline_s: float = ROUND_DEADLINE_S,
        backoff: Backoff = BRIEF,
    ) -> None:
        """Reach the ad server's store and both helpers; or, with a URL, the admin API of one elsewhere.

        Args:
            data: The ad server's data folder, as of `adserver serve --data`.
            helpers: host:port of both helpers, by role.
            url: Instead of both: where `adserver serve --dashboard-listen` serves. Everything works over it.
            token: Of the URL, as `adserver token create` printed it; its scope says what it may do.
            ca: Of the URL: a PEM file of the certificate to trust, where the system does not.
            insecure: Speak plaintext, to loopback addresses only; otherwise `tls` is needed.
            tls: This server's TLS files.
            database: SQLAlchemy URL of another database than SQLite in `data`.
            deadline_s: What a helper has for an answer that takes it no time.
            round_deadline_s: What it has for a query or an evaluation.
            backoff: How long a helper that does not answer is asked again, or an ad server elsewhere whose
                answer to a query, an evaluation or a new task is lost.

        Raises:
            ValueError: not exactly one of `insecure` and TLS files is given, or not exactly one of a URL and
                a folder with helpers.
        """
        if url is not None:
            if data is not None or helpers is not None:
                raise ValueError(
                    "data and helpers exclude url: give either a data folder and helpers, or a url"
                )
            trusted = None if ca is None else Path(ca)
            self.server = RemoteAdServer(url=url, token=token, ca=trusted, backoff=backoff)
            return
        if data is None or helpers is None:
            raise ValueError("no ad server is named: give either a data folder and helpers, or a url")
        # Neither would be plaintext by oversight, both would leave open which holds
        if insecure == (tls is not None):
            raise ValueError("expected exactly one of insecure=True, for loopback, and tls")
        peers = Peers(
            addresses=helpers,
            tls=tls,
            deadline_s=deadline_s,
            round_deadline_s=round_deadline_s,
            backoff=backoff,
        )
        self.server = LocalAdServer(data=Path(data), database=database, peers=peers)

    @classmethod
    def of(cls, server: "AdServer") -> Self:
        """Wrap an ad server."""
        # Past `__init__`, which would reach an ad server by its address
        client = cls.__new__(cls)
        client.server = server
        return client

    @classmethod
    def from_environment(cls) -> Self:
        """Connect to the ad server that `ADSERVER_DATA`, `ADSERVER_HELPER_0` and the like name.

        Raises:
            InvalidTask: a variable is missing; without `ADSERVER_INSECURE`, the TLS files lie in the data
                folder.
        """
        missing = [name for name in _VARIABLES if not os.environ.get(name)]
        if missing:
            raise InvalidTask(f"{missing[0]} is not set: source the project's env.sh, or set it")
        data, first, second = (os.environ[name] for name in _VARIABLES)
        insecure = os.environ.get("ADSERVER_INSECURE", "").lower() in _YES
        folder = Path(data)
        tls = TlsFiles(
            certificate=folder / "tls.crt",
            private_key=folder / "tls.key",
            trusted_authorities=folder / "trusted.crt",
        )
        return cls(
            data=folder,
            helpers=(first, second),
            insecure=insecure,
            tls=None if insecure else tls,
            database=os.environ.get("ADSERVER_DATABASE"),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to helpers, database or admin API."""
        self.server.close()

    def _task_of(self, dataset: str) -> Task:
        """Return the task of a dataset, by the start of the dataset's id."""
        found = self.server.dataset(dataset)
        return self.server.task(found.task_id.hex()).stored.bundle.task


def id_of(dataset: Dataset | str) -> str:
    """Return the id of a dataset as text, or the start of one as it was given.

    Raises:
        InvalidTask: the dataset is not committed yet, and has none.
    """
    if isinstance(dataset, str):
        return dataset
    if dataset.dataset_id is None:
        raise InvalidTask("the dataset is not committed yet: seal its task again")
    return dataset.dataset_id.hex()


def warn_afterwards(text: str, *, stacklevel: int) -> None:
    """Warn of what is stored or charged already; print it where warnings are errors.

    An exception would lose what the caller paid for.

    Args:
        text: What is warned of.
        stacklevel: As of `warnings.warn`, from the caller of this function.
    """
    try:
        warnings.warn(text, stacklevel=stacklevel + 1)
    except Warning:
        typer.echo(f"warning: {text}", err=True)
