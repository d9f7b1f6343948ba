"""Queries as they are put to the helpers, with their attachments, and the ids of requests.

>>> ChosenId.of("0f" * 16, "query", {"values": ["count"]}).query_id.hex()
'0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f'
"""

import json
import string
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from adserver.records.defaults import QUERY_ID_BYTES
from maskedlark.canonical import digest
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.numbers.field import SignedVector
from maskedlark.privacy.accounting import Epsilons

if TYPE_CHECKING:
    from maskedlark.releases.kinds import AnyQuery

_HEX: Final = frozenset(string.hexdigits)
S = TypeVar("S", bound="AnyQuery")


@frozen
class AskedWords:
    """The words of a request, of which a query has only the codes.

    Attributes:
        where: For keys: the category, word or number that summed reports have.
        domains: For keys: the words of the groups that were asked for.
    """

    where: Mapping[str, str] = field(default_factory=dict)
    domains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return them as text, ASCII."""
        return json.dumps({"where": dict(self.where), "domains": dict(self.domains)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` wrote."""
        read = json.loads(text)
        return cls(where=read["where"], domains={key: tuple(words) for key, words in read["domains"].items()})


@frozen
class PlannedQuery(Generic[S]):
    """A query of any kind.

    Attributes:
        spec: The query.
        beside: What is sent with it (`maskedlark.releases.kinds.BESIDE`): of a query of sums the codes of
            its axes, of an evaluation the ONNX file; of another kind nothing.
        words: What it was asked in.
    """

    spec: S
    beside: bytes = field(repr=False, default=b"")
    words: AskedWords = field(default_factory=AskedWords)


@frozen
class ChosenId:
    """A request's id, chosen by the client or drawn, under which it can be repeated at no cost.

    Attributes:
        query_id: 16 bytes.
        request: SHA-256 of everything that was asked: another request under the id is refused.
    """

    query_id: bytes
    request: bytes

    @classmethod
    def of(cls, typed: str, kind: str, asked: Mapping[str, Any], *files: bytes) -> "ChosenId":
        """Return the id of a request, which a client chose or the ad server drew.

        Args:
            typed: 32 hex digits, of 16 random bytes.
            kind: Query or evaluation.
            asked: Everything else that was asked, as plain values.
            files: What was sent with it.

        Raises:
            InvalidTask: the id is anything else.
        """
        if len(typed) != 2 * QUERY_ID_BYTES or not set(typed) <= _HEX:
            raise InvalidTask(
                f"the query id is not valid: expected {QUERY_ID_BYTES} random bytes as {2 * QUERY_ID_BYTES} "
                "hexadecimal digits"
            )
        # Sorted: clients write the same request with its fields in another order.
        plain = json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()
        return cls(query_id=bytes.fromhex(typed), request=digest(f"asked {kind}", plain, *files))

    @property
    def of_discovery(self) -> bytes:
        """The id of the discovery that goes before the query, so that it is the same one, too."""
        return discovery_id(self.query_id)


def discovery_id(query_id: bytes) -> bytes:
    """Return the id of the discovery that goes before a query.

    Derived and not drawn: a repetition must not discover, and pay, a second time.
    """
    return digest("discovery before a query", query_id)[:QUERY_ID_BYTES]


@frozen
class StoredAnswer:
    """What both helpers answered to a query, together.

    Attributes:
        total: The sum of both shares, with both helpers' noise in it.
        dataset_spent: What the dataset has spent with it, and open jobs have reserved, by the ledger that
            holds more.
    """

    total: SignedVector
    dataset_spent: Epsilons
