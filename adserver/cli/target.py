"""The ad server of a command: in a folder of this machine, or elsewhere, behind a URL.

@takes(server=server_of)
def _list_command(*, server: "AdServer", as_json: JsonOption = False) -> None:
    found = server.jobs()
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adserver.cli.options import DatabaseOption, Reach, WaitOption, patience, reach_of, store
from maskedlark.observability.traces import Traces
from maskedlark.terminal.options import panel, takes

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer
    from adserver.client.remote import RemoteAdServer

_peers = panel("Helpers and TLS")
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


@takes(far=_far_of)
def server_of(
    *, data: AnyDataOption = None, far: "RemoteAdServer | None", database: DatabaseOption = None
) -> "AdServer":
    """Return the ad server that the options name, for what needs no helpers.

    Raises:
        typer.BadParameter: as `_far_of`.
        InvalidTask: the folder does not exist.
    """
    from adserver.client.local import LocalAdServer

    if far is None:
        _require_ad_server(data or Path(), database)
    return far or LocalAdServer(data=data or Path(), database=database)


def server_or_none_of(**given: Any) -> "AdServer | None":
    """Return as `server_of`, or None where the options name no ad server."""
    return server_of(**given) if given["data"] or given["url"] else None


server_or_none_of.__signature__ = signature(server_of)  # type: ignore[attr-defined]  # `takes` reads it


@takes(far=_far_of, reach=reach_of)
def connected_server_of(
    *,
    data: AnyDataOption = None,
    far: "RemoteAdServer | None",
    database: DatabaseOption = None,
    helper_0: Annotated[
        str | None,
        _peers(
            "The helper of role 0; for a remote ad server, give --url instead.",
            envvar="ADSERVER_HELPER_0",
            metavar="HOST:PORT",
        ),
    ] = None,
    helper_1: Annotated[
        str | None,
        _peers(
            "The helper of role 1; for a remote ad server, give --url instead.",
            envvar="ADSERVER_HELPER_1",
            metavar="HOST:PORT",
        ),
    ] = None,
    reach: Reach,
    wait: WaitOption = False,
) -> "AdServer":
    """Return the ad server that the options name, with its helpers; a remote one has its own.

    Raises:
        typer.BadParameter: as `_far_of` and `reach_of`; or no helpers are named, and no URL.
        InvalidTask: the folder does not exist, also not after the time that `wait` allows.
    """
    if far is not None:
        return replace(far, backoff=patience(wait=wait))
    if helper_0 is None or helper_1 is None:
        raise typer.BadParameter(
            "the helpers are not named: give --helper-0 and --helper-1, or --url for a remote ad server"
        )
    from adserver.client.local import LocalAdServer

    folder = data or Path()
    _require_ad_server(folder, database, wait=wait)
    return LocalAdServer(data=folder, database=database, peers=reach(folder, helper_0, helper_1))


def _require_ad_server(folder: Path, database: str | None, *, wait: bool = False) -> None:
    """Refuse a folder that does not exist, so that a mistyped one is not made.

    Raises:
        InvalidTask: it does not exist; with `wait`, it still does not after the command's waiting time.
    """
    from maskedlark.errors import HelperUnavailable, InvalidTask

    def look() -> None:
        if database is None and not folder.exists():
            raise HelperUnavailable(
                f"{folder} does not exist: correct --data (or ADSERVER_DATA), or start `adserver serve` there"
            )

    try:
        if wait:
            from adserver.peers.retrying import with_retries

            with_retries(look, patience(wait=True))
        else:
            look()
    except HelperUnavailable as error:
        raise InvalidTask(str(error)) from None


@contextmanager
def trace(server: "AdServer", what: str, traces: Traces = Traces.NONE) -> Iterator["AdServer"]:
    """Use an ad server for one command, whose calls are the span `what`; close it at the end."""
    from maskedlark.observability.tracing import span, tracing

    with tracing("adserver", traces), span(what), server:
        yield server
