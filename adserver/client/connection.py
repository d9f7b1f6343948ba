"""What every part of the client stands on: the ad server's store and both helpers, or its admin API."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from sqlalchemy import Engine

from adserver.peers.client import HelperClient
from adserver.peers.connect import Peers
from adserver.peers.deadlines import ROUND_DEADLINE_S
from adserver.peers.retrying import BRIEF, Backoff
from adserver.store.database import create_tables, default_url
from adserver.store.datasets import Dataset
from adserver.store.tasks import StoredTask, TaskStore
from maskedlark.errors import InvalidTask
from maskedlark.frozen import pick_attributes
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.database import open_database
from maskedlark.runtime.keyed_lock import KeyedLock

if TYPE_CHECKING:
    from adserver.client.remote import RemoteAdServer

_VARIABLES: Final = ("ADSERVER_DATA", "ADSERVER_HELPER_0", "ADSERVER_HELPER_1")


class Connection:
    """An ad server's store and both helpers. Use it in a `with`, or close it."""

    _far: "RemoteAdServer | None"

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
            ValueError: neither insecure nor TLS files, or both; or neither a URL nor a folder and helpers, or
                both.
        """
        self._backoff = backoff
        self._stack, self._turns = ExitStack(), KeyedLock()
        self._opened: Engine | None = None
        self._far = None
        if url is not None:
            if data is not None or helpers is not None:
                raise ValueError(
                    "data and helpers exclude url: give either a data folder and helpers, or a url"
                )
            from adserver.client.remote import RemoteAdServer

            self._far = RemoteAdServer(url=url, token=token, ca=None if ca is None else Path(ca))
            return
        if data is None or helpers is None:
            raise ValueError("no ad server is named: give either a data folder and helpers, or a url")
        if insecure == (tls is not None):
            raise ValueError("expected exactly one of insecure=True, for loopback, and tls")
        self._data = Path(data)
        self._opened = open_database(database or default_url(self._data))
        create_tables(self._opened)
        peers = Peers(addresses=helpers, tls=tls, deadline_s=deadline_s, round_deadline_s=round_deadline_s)
        self._helpers = peers.open(self._stack, self._engine)

    @classmethod
    def of(cls, peers: Peers, *, data: Path, database: str | None) -> Self:
        """Open a connection from the options of a command."""
        return cls(
            data=data,
            helpers=peers.addresses,
            insecure=peers.tls is None,
            tls=peers.tls,
            database=database,
            **pick_attributes(peers, ("deadline_s", "round_deadline_s", "backoff")),
        )

    @classmethod
    def over(cls, engine: Engine, helpers: tuple[HelperClient, HelperClient], *, data: Path) -> Self:
        """Wrap an engine and clients that a server has opened, and closes later."""
        client = cls.__new__(cls)
        client._data, client._opened, client._helpers = data, engine, helpers
        client._stack, client._turns = ExitStack(), KeyedLock()
        client._far, client._backoff = None, BRIEF
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
        insecure = os.environ.get("ADSERVER_INSECURE", "") not in ("", "0", "false")
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
        """Let go of the helpers and the database."""
        self._stack.close()
        if self._opened is not None:
            self._opened.dispose()

    @property
    def _engine(self) -> Engine:
        """The ad server's database.

        Raises:
            InvalidTask: the ad server is on another machine.
        """
        if self._opened is None:
            raise InvalidTask(
                "this operation does not work with a url: give the ad server's data folder and helpers"
            )
        return self._opened

    def _task(self, dataset: Dataset) -> StoredTask:
        return TaskStore(self._engine).find(dataset.task_id.hex())
