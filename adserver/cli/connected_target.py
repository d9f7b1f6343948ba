"""Where a command's ad server is: here, with its helpers, or elsewhere, behind its admin API.

@takes(at=anywhere_of)
def aggregate_command(*, at: "Anywhere", ...) -> None:
    with at.asking("aggregate", traces) as client: ...
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from adserver.cli.options import Reach, WaitOption, patience, reach_of
from adserver.cli.target import Target, place_of
from maskedlark.frozen import frozen
from maskedlark.observability.traces import Traces
from maskedlark.terminal.options import panel, takes

if TYPE_CHECKING:
    from adserver.client import Client
    from adserver.client.connection import Connection
    from adserver.client.sealing import Sealing
    from adserver.peers.connect import Peers
    from adserver.peers.retrying import Backoff

_Connection = TypeVar("_Connection", bound="Connection")
_peers = panel("Helpers and TLS")


@frozen
class ConnectedTarget:
    """An ad server, on this machine or elsewhere.

    Attributes:
        place: Where.
        peers: Its helpers, if it is on this machine.
        backoff: How long what does not answer is asked again.
    """

    place: Target
    peers: "Peers | None"
    backoff: "Backoff"

    @contextmanager
    def asking(self, what: str, traces: Traces = Traces.NONE) -> Iterator["Client"]:
        """Open a client for one command, whose calls are the span `what`."""
        from adserver.client import Client

        with self._asking(Client, what, traces) as client:
            yield client

    @contextmanager
    def sealing(self, traces: Traces) -> Iterator["Sealing"]:
        """Open the part of a client that seals datasets, which loads faster than all of it."""
        from adserver.client.sealing import Sealing

        with self._asking(Sealing, "seal dataset", traces) as client:
            yield client

    @contextmanager
    def _asking(self, kind: type[_Connection], what: str, traces: Traces) -> Iterator[_Connection]:
        from maskedlark.observability.tracing import span, tracing

        with tracing("adserver", traces), span(what), self._connected(kind) as client:
            yield client

    def _connected(self, kind: type[_Connection]) -> _Connection:
        far = self.place.far
        if self.peers is not None:
            return kind.of(self.peers, data=self.place.folder, database=self.place.database)
        if far is None:
            raise AssertionError("an ad server without helpers must be remote")
        return kind(url=far.url, token=far.token, ca=far.ca, backoff=self.backoff)


@takes(place=place_of, reach=reach_of)
def anywhere_of(
    *,
    place: Target,
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
) -> ConnectedTarget:
    """Return the ad server that the options name; for a remote one, helpers and TLS are ignored.

    Raises:
        typer.BadParameter: as `place_of` and `peers_of`; or no helpers are named, and no URL.
    """
    if place.far is not None:
        return ConnectedTarget(place=place, peers=None, backoff=patience(wait=wait))
    if helper_0 is None or helper_1 is None:
        raise typer.BadParameter(
            "the helpers are not named: give --helper-0 and --helper-1, or --url for a remote ad server"
        )
    peers = reach(place.folder, helper_0, helper_1)
    return ConnectedTarget(place=place, peers=peers, backoff=peers.backoff)
