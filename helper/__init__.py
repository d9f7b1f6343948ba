"""One of the two independent helper services: opens its shares, answers rounds, keeps the ledger.

Imports no other party.
"""

import os

os.environ.setdefault(
    "GRPC_VERBOSITY", "NONE"
)  # before gRPC is imported: its log lines are not JSON, and some name the caller
# Before ONNX Runtime is imported: its builds report to their maker, unless this variable says that they must
# not: of the machine, and when rounds are computed, and of how many rows. So no setting brings it back.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
