"""The ad server from a notebook or a program: tasks, datasets, jobs, measurements, evaluations.

May import: views, messages, collecting, ingest, measuring, simulating, training, budgets, peers, store,
records.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adserver.client.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    """Import `Client` on first use: a command loads only the part that it uses."""
    if name != "Client":
        raise AttributeError(f"module 'adserver.client' has no attribute {name!r}")
    from adserver.client.client import Client

    return Client
