"""One of the two independent helper services: opens its shares, answers rounds, keeps the ledger.

Imports no other party.
"""

import os

os.environ.setdefault(
    "GRPC_VERBOSITY", "NONE"
)  # before gRPC is imported: its log lines are not JSON, and some name the caller
