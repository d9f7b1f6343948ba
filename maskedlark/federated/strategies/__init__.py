"""The registry of strategies: a new one is a module here, a line below, and its name in `federated.kinds`."""

import json
from typing import Final

from maskedlark import canonical
from maskedlark.errors import InvalidTask
from maskedlark.federated.strategies.client_level import ClientLevel
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.federated.strategies.dp_fedsgd import DpFedSgd
from maskedlark.federated.strategies.fedprox import FedProx
from maskedlark.federated.strategies.line import Line
from maskedlark.federated.strategy import Strategy

STRATEGIES: Final[dict[str, type[Strategy]]] = {
    "dp-fedavg": DpFedAvg,
    "dp-fedsgd": DpFedSgd,
    "client-level": ClientLevel,
    "line": Line,
    "fedprox": FedProx,
}


def strategy_class(kind: str) -> type[Strategy]:
    """Return the class of a kind.

    Raises:
        InvalidTask: there is no such strategy.
    """
    if kind not in STRATEGIES:
        raise InvalidTask(f"there is no strategy {kind[:40]!r}: use one of {', '.join(STRATEGIES)}")
    return STRATEGIES[kind]


def decode(encoded: bytes) -> Strategy:
    """Parse a strategy from a peer.

    Raises:
        InvalidTask: not canonical, a setting out of range, or an unknown kind.
    """
    if len(encoded) > canonical.MAX_BYTES:
        raise InvalidTask(f"a strategy has at most {canonical.MAX_BYTES} bytes")
    # Read twice: the kind says which class checks the bytes.
    try:
        parsed = json.loads(encoded)
    # Thousands of opened brackets are a RecursionError: a peer's mistake, and no bug here.
    except (ValueError, RecursionError):
        raise InvalidTask("a strategy is a JSON object") from None
    if not isinstance(parsed, dict) or not isinstance(kind := parsed.get("kind"), str):
        raise InvalidTask("a strategy is a JSON object with its kind")
    return canonical.decode(strategy_class(kind), encoded)
