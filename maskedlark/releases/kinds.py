"""The kinds of release: one table, by the name that ledgers, stores and the wire spell.

A new kind of query is a module with a spec that offers what `maskedlark.releases.release.QueryLike` says, a
line in each of the two lists here, and a function at the helpers that computes its answer.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from maskedlark.canonical import decode
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.job import JobSpec
from maskedlark.releases.query import QuerySpec
from maskedlark.releases.update import UpdateSpec

AnyQuery: TypeAlias = QuerySpec | DiscoverySpec | EvaluationSpec | UpdateSpec
AnySpec: TypeAlias = JobSpec | AnyQuery

QUERY_KINDS: Final[Mapping[str, type[AnyQuery]]] = {
    spec.kind: spec for spec in (QuerySpec, DiscoverySpec, EvaluationSpec, UpdateSpec)
}

BESIDE: Final[Mapping[str, str]] = {QuerySpec.kind: "codes", EvaluationSpec.kind: "model"}
"""The attachment of a query, for the kinds that have one, by its name on the wire."""


def decode_query(kind: str, encoded: bytes) -> AnyQuery:
    """Decode a query of a kind from its canonical bytes.

    Raises:
        InvalidTask: the bytes are not canonical.
        KeyError: there is no such kind.
    """
    return decode(QUERY_KINDS[kind], bytes(encoded))
