"""The ad server from a notebook or a program: tasks, datasets, jobs, measurements, evaluations, predictions.

May import: views, messages, collecting, ingest, measuring, simulating, training, budgets, peers, store,
records.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from adserver.client.client import Client
    from adserver.client.columns import columns_of
    from adserver.client.comparison import compare
    from adserver.client.plain_comparison import compare_plain
    from adserver.client.prediction import predict

__all__ = ["Client", "columns_of", "compare", "compare_plain", "predict"]

_MODULES: Final = {
    "Client": "adserver.client.client",
    "columns_of": "adserver.client.columns",
    "compare": "adserver.client.comparison",
    "compare_plain": "adserver.client.plain_comparison",
    "predict": "adserver.client.prediction",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: a command loads only the part that it uses."""
    if name not in _MODULES:
        raise AttributeError(f"module 'adserver.client' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, which no attribute has before its first use."""
    return [*globals(), *__all__]
