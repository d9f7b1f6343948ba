"""The ad server: takes in sealed reports, seals datasets at both helpers, runs jobs, measures and steps models. Imports no other party."""

import os

os.environ.setdefault(
    "GRPC_VERBOSITY", "NONE"
)  # before gRPC is imported: its own lines are no JSON, and some name who called

from adserver.client import Client

__all__ = ["Client"]
