"""Where a command's ad server is: here, with its helpers, or elsewhere, behind its admin API.

@takes(at=anywhere_of)
def seal_command(*, at: "Anywhere", ...) -> None:
    with at.asking("seal dataset", traces) as client: ...
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.options import (
    AnyDataOption,
    DatabaseOption,
    DeadlineOption,
    Far,
    InsecureOption,
    RoundDeadlineOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    WaitOption,
    far_of,
    needed,
    patience,
    peers_of,
)
from adserver.peers.deadlines import ROUND_DEADLINE_S
from maskedlark.frozen import frozen
from maskedlark.observability.traces import Traces
from maskedlark.terminal.options import panel, takes

if TYPE_CHECKING:
    from adserver.client import Client
    from adserver.client.far import FarAdServer
    from adserver.peers.opening import Peers
    from adserver.peers.retrying import Backoff

_peers = panel("Helpers and TLS")

AnyHelper0Option = Annotated[
    str | None,
    _peers("The helper of role 0; or --url.", "--helper-0", envvar="ADSERVER_HELPER_0", metavar="HOST:PORT"),
]
AnyHelper1Option = Annotated[
    str | None,
    _peers("The helper of role 1; or --url.", "--helper-1", envvar="ADSERVER_HELPER_1", metavar="HOST:PORT"),
]


@frozen
class Beside:
    """An ad server on this machine, with its folder and its helpers.

    Attributes:
        data: Its folder.
        database: Another database than the folder's.
        peers: Its helpers.
    """

    data: Path
    database: str | None
    peers: "Peers"


@frozen
class Anywhere:
    """An ad server, on this machine or elsewhere.

    Attributes:
        place: Where.
        backoff: How long what does not answer is asked again.
    """

    place: "Beside | FarAdServer"
    backoff: "Backoff"

    @contextmanager
    def asking(self, what: str, traces: Traces = Traces.NONE) -> Iterator["Client"]:
        """A client for one command, whose calls are the span `what`."""
        from maskedlark.observability.tracing import span, tracing

        with tracing("adserver", traces), span(what), self._client() as client:
            yield client

    def _client(self) -> "Client":
        from adserver.client import Client

        match self.place:
            case Beside(data=data, database=database, peers=peers):
                return Client.of(peers, data=data, database=database)
            case far:
                return Client(url=far.url, token=far.token, ca=far.ca, backoff=self.backoff)


@takes(far=far_of)
def anywhere_of(
    *,
    data: AnyDataOption = None,
    far: Far = None,
    helper_0: AnyHelper0Option = None,
    helper_1: AnyHelper1Option = None,
    insecure: InsecureOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
    deadline: DeadlineOption = 60.0,
    round_deadline: RoundDeadlineOption = ROUND_DEADLINE_S,
    wait: WaitOption = False,
    database: DatabaseOption = None,
) -> Anywhere:
    """The ad server that the options name; of one elsewhere, helpers, TLS and database are not looked at.

    Raises:
        typer.BadParameter: as `far_of` and `peers_of`; or no helpers are named, and no URL.
    """
    if far is not None:
        return Anywhere(place=far, backoff=patience(wait=wait))
    if helper_0 is None or helper_1 is None:
        raise typer.BadParameter("give --helper-0 and --helper-1, or --url for an ad server elsewhere")
    peers = peers_of(
        data=needed(data),
        helper_0=helper_0,
        helper_1=helper_1,
        insecure=insecure,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        deadline=deadline,
        round_deadline=round_deadline,
        wait=wait,
    )
    return Anywhere(place=Beside(data=needed(data), database=database, peers=peers), backoff=peers.backoff)
