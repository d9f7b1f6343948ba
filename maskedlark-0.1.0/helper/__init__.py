"""One of the two independent helper services: opens its shares, answers rounds, keeps the ledger.

Imports no other party.
"""

import os

os.environ.setdefault(
    "GRPC_VERBOSITY", "NONE"
)  # before gRPC is imported: its own lines are no JSON, and some name who called
