"""The file of a federated job between two rounds: the server's state, and the weights that did best so far.

Without an evaluation set it is the state's own encoding, byte for byte.
"""

from io import BytesIO

import numpy as np

from adserver.training.trainer import BestWeights
from maskedlark.federated.strategy import ServerState


def encode_state(state: ServerState, best: BestWeights | None) -> bytes:
    """Encode both as one npz file, which `ServerState.decode` reads as well."""
    stored = state.encode()
    if best is None:
        return stored
    whole = BytesIO()
    with np.load(BytesIO(stored), allow_pickle=False) as arrays:
        np.savez(whole, allow_pickle=False, **arrays, **best.arrays())
    return whole.getvalue()


def read_best(stored: bytes) -> BestWeights | None:
    """Read the best weights, of one array: the parameters as devices get them. None if none was evaluated."""
    with np.load(BytesIO(stored), allow_pickle=False) as arrays:
        return BestWeights.read(arrays)
