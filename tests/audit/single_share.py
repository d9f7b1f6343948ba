"""Is one helper's share of a round uniform, also where there is nothing to hide behind.

No gradient, or a feature that nobody has?

Without noise, since none of this may rest on it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from maskedlark.model.losses import Loss
from maskedlark.randomness import seeded
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.report import Example
from tests.audit.part import Part
from tests.audit.site import Site, open_site
from tests.helper.parties import make_model

NUM_FEATURES: Final = 8_192
ROUNDS: Final = 8
MIB: Final = 1 << 20
CHI_SQUARE_AT_MOST: Final = 255 + 6 * sqrt(510)
"""Six standard deviations above what uniform bytes give."""
ADVANTAGE_AT_MOST: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What shares look like to a helper's rival that has them but not the other helper's.

    Attributes:
        chi_squares: Of the bytes of 1 MiB of shares, for each batch and helper: 255 is expected of uniform
            ones.
        advantage: The best of several guessers whether anybody has a feature: P(says nobody | nobody) -
            P(says nobody | somebody).
    """

    chi_squares: dict[str, float]
    advantage: float

    @property
    def is_uniform(self) -> bool:
        """Whether nothing was found."""
        return max(self.chi_squares.values()) <= CHI_SQUARE_AT_MOST and self.advantage <= ADVANTAGE_AT_MOST


def blinded(seed: int) -> Part:
    """The part on helpers as they are."""
    found = examine(seed=seed)
    return Part(
        claims={"single_share_uniform": found.is_uniform},
        figures={
            "rare_feature_advantage": found.advantage,
            "chi_squares": found.chi_squares,
            "chi_square_at_most": CHI_SQUARE_AT_MOST,
        },
    )


def bare(seed: int) -> Part:
    """The part on helpers that leave the blind out: the audit must see it."""
    found = examine(seed=seed, is_blinded=False)
    return Part(
        claims={"missing_blind_caught": not found.is_uniform},
        figures={"rare_feature_advantage_without_blind": found.advantage},
    )


def examine(*, seed: int, is_blinded: bool = True) -> Finding:
    """Shares of real helpers over gRPC; `is_blinded=False` is a build of them that leaves the blind out."""
    with (
        open_site(
            seed=seed,
            model=make_model(NUM_FEATURES, 2),
            loss=Loss.CROSS_ENTROPY,
            num_features=NUM_FEATURES,
            max_dataset_size=100,
            mechanism="none",
        ) as site,
        nullcontext() if is_blinded else _without_blind(),
    ):
        shares = {name: _shares(site, batch) for name, batch in _batches(seed).items()}
    return Finding(
        chi_squares={
            f"{name}_{role}": _chi_square(rounds[role]) for name, rounds in shares.items() for role in (0, 1)
        },
        advantage=max(_advantage(shares["rare"][role]) for role in (0, 1)),
    )


def _batches(seed: int) -> dict[str, list[Example]]:
    """People with all features.

    Fake reports without any; people of whom nobody has a feature of the upper half.
    """
    drawn = np.frombuffer(seeded(seed, "features")(8 * NUM_FEATURES), np.uint8).reshape(8, NUM_FEATURES) | 1
    lower_half = drawn * (np.arange(NUM_FEATURES) < NUM_FEATURES // 2).astype(np.uint8)
    return {
        "people": [Example(features=row, label=i % 2) for i, row in enumerate(drawn)],
        "nobody": [Example(features=np.zeros(NUM_FEATURES, np.uint8), label=None)] * 8,
        "rare": [Example(features=row, label=i % 2) for i, row in enumerate(lower_half)],
    }


def _shares(site: Site, batch: list[Example]) -> NDArray[np.uint64]:
    """uint64 (2, rounds, parameters)."""
    spec, _ = site.start(site.seal(batch), rounds=ROUNDS, noise_multiplier=0.0)
    return np.stack([[share.vector for share in site.shares(spec, index)] for index in range(ROUNDS)], axis=1)


def _chi_square(shares: NDArray[np.uint64]) -> float:
    content = np.ascontiguousarray(shares).view(np.uint8).ravel()
    assert len(content) >= MIB
    counts = np.bincount(content[:MIB], minlength=256)
    return float(((counts - MIB / 256) ** 2 / (MIB / 256)).sum())


def _advantage(shares: NDArray[np.uint64]) -> float:
    """Guessers that look at the size, the sign, the parity and single bytes of a weight's coordinate."""
    weights = shares[:, : 2 * NUM_FEATURES].reshape(ROUNDS, NUM_FEATURES, 2)
    rare, common = weights[:, NUM_FEATURES // 2 :].ravel(), weights[:, : NUM_FEATURES // 2].ravel()
    magnitudes = [(np.minimum(one, np.uint64(2**64 - 2**32 + 1) - one)) for one in (rare, common)]
    guesses = [
        (magnitudes[0] < bound, magnitudes[1] < bound)
        for bound in (2 ** np.arange(1, 63, 4, dtype=np.uint64))
    ]
    guesses += [(rare == 0, common == 0), (rare % 2 == 0, common % 2 == 0)]
    guesses += [
        ((rare >> byte) % 256 < 128, (common >> byte) % 256 < 128)
        for byte in np.arange(0, 64, 8, dtype=np.uint64)
    ]
    return max(abs(float(says.mean()) - float(says_wrongly.mean())) for says, says_wrongly in guesses)


@contextmanager
def _without_blind() -> Iterator[None]:
    def none(_pair: PairKey, _transcript: bytes, count: int) -> Any:
        return np.zeros(count, np.uint64)

    with patch.object(PairKey, "blind", none):
        yield
