"""A real PostgreSQL server as a library (the pgserver wheel), so that every store is tested on both engines
that it promises.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sqlalchemy import URL, create_engine, make_url

from tests.patience import HANGS_S
from tests.programs import do_without

REQUIRED: Final = "MASKEDLARK_REQUIRE_POSTGRES"
"""The environment variable: 1 where tests on PostgreSQL must not be skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """A running server."""

    url: URL
    numbers: Iterator[int]

    def new_database(self) -> str:
        """The URL of an empty database."""
        return self._created("template1")

    def copy_of(self, url: str) -> str:
        """The URL of a new database that is as another one is now, as a backup is.

        Nobody may be connected to that one.
        """
        return self._created(str(make_url(url).database))

    def _created(self, template: str) -> str:
        name = f"database_{next(self.numbers)}"
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        engine.dispose()
        return self.url.set(database=name).render_as_string(hide_password=False)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server on a socket in a folder of its own; as root it runs under an account that pgserver makes.

    Skips where it cannot start, but where `MASKEDLARK_REQUIRE_POSTGRES` is 1 (in CI) fails.
    """
    with TemporaryDirectory(prefix="maskedlark-postgres-") as folder:
        os.environ.setdefault(
            "XDG_RUNTIME_DIR", folder
        )  # where pgserver keeps its lock; without it, it warns
        try:
            pgserver: Any = import_module("pgserver")  # the dev extra has it; not every platform does
        except ImportError:
            do_without("the pgserver wheel is not installed (it is in the dev extra)", REQUIRED)
        logging.getLogger("pgserver").setLevel(
            logging.WARNING
        )  # it logs once more when Python ends, to a stream that is closed by then
        of_server: Any = import_module("pgserver.postgres_server")
        start = of_server.pg_ctl  # which it gives ten seconds, and which gives itself a minute
        os.environ.setdefault("PGCTLTIMEOUT", str(int(HANGS_S)))

        def pg_ctl(args: list[str], **how: Any) -> Any:
            # An orderly stop first writes hundreds of databases to disk: minutes on a busy machine.
            at_once = ["-m", "immediate"] if "stop" in args else []
            return start([*args, *at_once], **{**how, "timeout": HANGS_S})

        of_server.pg_ctl = pg_ctl
        try:
            server = pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        except (OSError, RuntimeError, AssertionError) as error:
            do_without(f"PostgreSQL does not start here: {type(error).__name__}: {error}", REQUIRED)
        try:
            # Nobody reads what a crash of this machine leaves; a server that is killed keeps what it wrote.
            server.psql("ALTER SYSTEM SET fsync = off")
            server.psql("SELECT pg_reload_conf()")
            yield Postgres(
                url=make_url(server.get_uri()).set(drivername="postgresql+psycopg"), numbers=count()
            )
        finally:
            server.cleanup()
