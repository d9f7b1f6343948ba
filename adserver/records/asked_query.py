"""Queries as they are put to the helpers, with what is sent beside them."""

from dataclasses import field
from typing import Final, Generic, TypeVar

from maskedlark.frozen import frozen
from maskedlark.numbers.field import SignedVector
from maskedlark.privacy.accounting import Epsilons
from maskedlark.releases.kinds import AnyQuery

QUERY_ID_BYTES: Final = 16

S = TypeVar("S", bound=AnyQuery)


@frozen
class PlannedQuery(Generic[S]):
    """A query of any kind.

    Attributes:
        spec: The query.
        beside: What is sent beside it (`maskedlark.releases.kinds.BESIDE`): of a query of sums the codes of
            its axes, of an evaluation the ONNX file; of another kind nothing.
    """

    spec: S
    beside: bytes = field(repr=False, default=b"")


@frozen
class Answer:
    """What both helpers answered to a query, together.

    Attributes:
        total: The sum of both shares, with both helpers' noise in it.
        dataset_spent: What the dataset has spent with it, by the ledger that holds more.
    """

    total: SignedVector
    dataset_spent: Epsilons
