"""The ad server of a command: in a folder of this machine, or elsewhere, behind a URL.

@takes(server=server_of)
def _list_command(*, server: "AdServer", as_json: JsonOption = False) -> None:
    found = server.jobs()
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from adserver.cli.options import (
    DatabaseOption,
    DataOption,
    InsecureOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    WaitOption,
    peers,
    store,
)
from adserver.peers.deadlines import ROUND_DEADLINE_S
from maskedlark.observability.traces import Traces
from maskedlark.rpc.keepalive import Keepalive
from maskedlark.terminal.options import panel, takes

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer
    from adserver.client.remote import RemoteAdServer
    from adserver.peers.connect import Peers
    from adserver.peers.retrying import Backoff

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
    # Not one before the other: ADSERVER_DATA may be set in a shell whose user means the remote one
    if data is not None:
        raise typer.BadParameter(
            "two ad servers are named: give either --data (or ADSERVER_DATA) for one on this "
            "machine or --url (or ADSERVER_URL) for a remote one"
        )
    from adserver.client.remote import RemoteAdServer

    return RemoteAdServer(url=url, token=token, ca=url_ca)


# The helpers of a folder at two addresses
_Reach: TypeAlias = "Callable[[Path, str, str], Peers]"


def _reach_of(
    *,
    insecure: InsecureOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    deadline: Annotated[
        float,
        peers(
            "Seconds to wait for an answer that needs no computation at a helper.",
            envvar="ADSERVER_DEADLINE",
            min=0.1,
        ),
    ] = 60.0,
    round_deadline: Annotated[
        float,
        peers(
            "Seconds to wait for a helper's computation: a round, query, evaluation or dataset. A "
            f"dead helper is detected within {Keepalive().noticed_within_s:g} s.",
            envvar="ADSERVER_ROUND_DEADLINE",
            min=0.1,
        ),
    ] = ROUND_DEADLINE_S,
    wait: WaitOption = False,
) -> _Reach:
    """Return how helpers are reached; raise typer.BadParameter as `tls_files`, or if both are one."""

    # Later than the options are read: of a remote ad server neither TLS files nor helpers are looked for
    def reach(data: Path, helper_0: str, helper_1: str) -> "Peers":
        from adserver.peers.connect import Peers
        from maskedlark.terminal.tls_options import tls_files

        if helper_0 == helper_1:
            raise typer.BadParameter(
                f"--helper-0 and --helper-1 are both {helper_0}: name two helpers of two operators"
            )
        tls = tls_files(
            insecure=insecure, certificate=tls_cert, private_key=tls_key, authorities=tls_ca, folder=data
        )
        return Peers(
            addresses=(helper_0, helper_1),
            tls=tls,
            deadline_s=deadline,
            round_deadline_s=round_deadline,
            backoff=_patience(wait=wait),
        )

    return reach


@takes(reach=_reach_of)
def peers_of(
    *,
    data: DataOption,
    helper_0: Annotated[str, peers("The helper of role 0.", envvar="ADSERVER_HELPER_0", metavar="HOST:PORT")],
    helper_1: Annotated[str, peers("The helper of role 1.", envvar="ADSERVER_HELPER_1", metavar="HOST:PORT")],
    reach: _Reach,
) -> "Peers":
    """Return the helpers that the options name."""
    return reach(data, helper_0, helper_1)


def _patience(*, wait: bool) -> "Backoff":
    """Return how long a command retries, reporting on standard error what it waits for."""
    from adserver.peers.retrying import BRIEF, LONG

    return replace(LONG if wait else BRIEF, tell=_tell)


def _tell(cause: Exception) -> None:
    """Report on standard error, in one line, what a command waits for."""
    # Standard output is for programs
    sys.stderr.write(f"waiting: {cause}\n")


@takes(far=_far_of)
def server_of(
    *, data: AnyDataOption = None, far: "RemoteAdServer | None", database: DatabaseOption = None
) -> "AdServer":
    """Return the ad server that the options name, for what needs no helpers.

    Raises:
        typer.BadParameter: as `_far_of`.
        InvalidSetting: the folder does not exist.
    """
    from adserver.client.local import LocalAdServer

    if far is None:
        _require_ad_server(data or Path(), database)
    return far or LocalAdServer(data=data or Path(), database=database)


@takes(far=_far_of, reach=_reach_of)
def connected_server_of(
    *,
    data: AnyDataOption = None,
    far: "RemoteAdServer | None",
    database: DatabaseOption = None,
    helper_0: Annotated[
        str | None,
        peers(
            "The helper of role 0; for a remote ad server, give --url instead.",
            envvar="ADSERVER_HELPER_0",
            metavar="HOST:PORT",
        ),
    ] = None,
    helper_1: Annotated[
        str | None,
        peers(
            "The helper of role 1; for a remote ad server, give --url instead.",
            envvar="ADSERVER_HELPER_1",
            metavar="HOST:PORT",
        ),
    ] = None,
    reach: _Reach,
    wait: WaitOption = False,
) -> "AdServer":
    """Return the ad server that the options name, with its helpers; a remote one has its own.

    Raises:
        typer.BadParameter: as `_far_of` and `_reach_of`; or no helpers are named, and no URL.
        InvalidSetting: the folder does not exist, also not after the time that `wait` allows.
    """
    if far is not None:
        return replace(far, backoff=_patience(wait=wait))
    if helper_0 is None or helper_1 is None:
        raise typer.BadParameter(
            "the helpers are not named: give --helper-0 and --helper-1, or --url for a remote ad server"
        )
    from adserver.client.local import LocalAdServer

    # `_far_of` has refused a command that names neither: this only tells the type checker so
    folder = data or Path()
    _require_ad_server(folder, database, wait=wait)
    return LocalAdServer(data=folder, database=database, peers=reach(folder, helper_0, helper_1))


def _require_ad_server(folder: Path, database: str | None, *, wait: bool = False) -> None:
    """Refuse a folder that does not exist, so that a mistyped one is not made, and a helper's.

    Raises:
        InvalidSetting: it is a helper's, or does not exist; with `wait`, it still does not after the
            command's waiting time.
    """
    from maskedlark.errors import HelperUnavailable, InvalidSetting

    # A command would make an ad server's database there
    if database is None and (folder / "keys.json").exists():
        raise InvalidSetting(
            f"{folder} is a helper's folder, for it holds keys.json: correct --data (or ADSERVER_DATA) to "
            "the ad server's own"
        )

    def look() -> None:
        # With a database elsewhere, that and not the folder holds the ad server
        if database is None and not folder.exists():
            raise HelperUnavailable(
                f"{folder} does not exist: correct --data (or ADSERVER_DATA), or start `adserver serve` there"
            )

    try:
        if wait:
            from adserver.peers.retrying import with_retries

            with_retries(look, _patience(wait=True))
        else:
            look()
    except HelperUnavailable as error:
        raise InvalidSetting(str(error)) from None


@contextmanager
def trace(server: "AdServer", what: str, traces: Traces = Traces.NONE) -> Iterator["AdServer"]:
    """Use an ad server for one command, whose calls are the span `what`; close it at the end."""
    from maskedlark.observability.tracing import span, tracing

    with tracing("adserver", traces), span(what), server:
        yield server
