"""The ad server: takes in sealed reports, seals datasets, runs jobs, measures, and steps models.

Imports no other party.
"""

import os
from typing import TYPE_CHECKING, Any

os.environ.setdefault(
    "GRPC_VERBOSITY", "NONE"
)  # before gRPC is imported: its own lines are no JSON, and some name who called
# Before ONNX Runtime is imported: otherwise its builds report the machine, and each use of a model with its
# number of rows, to their maker. No setting of the user's turns that back on.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

if TYPE_CHECKING:
    from adserver.client import Client, columns_of, compare, compare_plain, predict

__all__ = ["Client", "columns_of", "compare", "compare_plain", "predict"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: the command line's help does without."""
    if name not in __all__:
        raise AttributeError(f"module 'adserver' has no attribute {name!r}")
    try:
        from adserver import client

        return getattr(client, name)
    except ModuleNotFoundError as error:
        from maskedlark.terminal.exit_status import how_to_install

        if error.name is None or error.name.partition(".")[0] in ("adserver", "maskedlark"):
            raise  # a bug, and no extra that could be installed
        told = how_to_install(error.name, __name__, needs=f"adserver.{name}")
        raise ModuleNotFoundError(told, name=error.name) from None


def __dir__() -> list[str]:
    """Return the public names, which no attribute has before its first use."""
    return [*globals(), *__all__]
