"""Where the ad server of a command is that needs no helpers: here, in a folder, or elsewhere, behind a URL.

@takes(at=place_of)
def list_command(*, at: Place, as_json: JsonOption = False) -> None:
    found = at.seen_jobs.all()
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.options import DatabaseOption, open_store, store
from maskedlark.frozen import frozen
from maskedlark.terminal.options import panel, takes

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from adserver.client.remote import RemoteAdServer
    from adserver.records.job_record import SeenJobs
    from adserver.store.jobs import JobQueue

_far = panel("A remote ad server")

AnyDataOption = Annotated[
    Path | None,
    store(
        "Folder of the ad server's own files; for a remote ad server, give --url instead.",
        "--data",
        envvar="ADSERVER_DATA",
    ),
]
"Options of commands that also work from another machine."


def _far_of(
    *,
    data: AnyDataOption = None,
    url: Annotated[
        str | None,
        _far(
            "Dashboard URL of a remote ad server; instead of --data.",
            "--url",
            envvar="ADSERVER_URL",
        ),
    ] = None,
    token: Annotated[
        str,
        _far(
            "Token for --url: the output of `adserver token create` on that ad server.",
            "--token",
            envvar="ADSERVER_TOKEN",
        ),
    ] = "",
    url_ca: Annotated[
        Path | None,
        _far(
            "PEM certificate to trust for --url, if the system does not trust it.",
            "--url-ca",
            envvar="ADSERVER_URL_CA",
        ),
    ] = None,
) -> "RemoteAdServer | None":
    """Return the remote ad server that the options name, or None for the one of --data.

    Raises:
        typer.BadParameter: both are named, or neither.
    """
    if url is None:
        if data is None:
            raise typer.BadParameter(
                "no ad server is named: give --data for one on this machine, or --url and --token for "
                "a remote one"
            )
        return None
    if data is not None:
        raise typer.BadParameter(
            "two ad servers are named: give either --data (or ADSERVER_DATA) for one on this "
            "machine or --url (or ADSERVER_URL) for a remote one"
        )
    from adserver.client.remote import RemoteAdServer

    return RemoteAdServer(url=url, token=token, ca=url_ca)


@frozen
class Target:
    """Where an ad server is.

    Attributes:
        data: Its folder, if it is on this machine.
        far: Its admin API, if it is elsewhere.
        database: Another database than the folder's.
    """

    data: Path | None
    far: "RemoteAdServer | None"
    database: str | None

    @property
    def folder(self) -> Path:
        """The folder of one on this machine."""
        if self.data is None:
            raise AssertionError("a remote ad server has no folder on this machine")
        return self.data

    def opened(self) -> "Engine":
        """Open the database of an ad server on this machine, with its tables."""
        return open_store(self.folder, self.database)

    def jobs(self) -> "JobQueue":
        """Return its jobs."""
        from adserver.store.jobs import JobStore

        return JobStore(self.opened(), time.time) if self.far is None else self.far.jobs

    def seen_jobs(self) -> "SeenJobs":
        """Return its jobs for reading only, without the modules that take half a second to load."""
        from adserver.store.sqlite_jobs import jobs_in

        light = jobs_in(self.folder) if self.far is None and self.database is None else None
        return self.jobs() if light is None else light


@takes(far=_far_of)
def place_of(
    *, data: AnyDataOption = None, far: "RemoteAdServer | None", database: DatabaseOption = None
) -> Target:
    """Return the ad server that the options name; raises as `_far_of`."""
    return Target(data=data, far=far, database=database)
