import numpy as np
import pytest

from maskedlark.numbers.field import MODULUS, add, from_signed
from maskedlark.releases import release
from maskedlark.reports.helper_pair_key import PairKey

PAIR = PairKey(secret=bytes(range(32)), role=0)
NOISE = np.array([0, -1, 5, -(2**40), 2**40, 3, -3], np.int64)
SUM = np.array([0, 0, MODULUS - 1, 7, MODULUS - 7, 1, 2], np.uint64)


@pytest.mark.parametrize("block", [1, 3, 7, 1 << 16])
def test_a_share_is_sum_blind_and_noise_however_it_is_cut(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "BLOCK", block)
    share = release.blind(pair=PAIR, release_transcript=b"t", vector=SUM, values_digest=b"d", noise=NOISE)
    expected = add(add(SUM, PAIR.blind(b"t", len(SUM))), from_signed(NOISE))
    assert share.vector.tolist() == expected.tolist()


@pytest.mark.parametrize("count", [0, 1, 6, 8])
def test_noise_of_another_length_than_the_sum_leaves_nothing(count: int) -> None:
    with pytest.raises(AssertionError):
        release.blind(
            pair=PAIR,
            release_transcript=b"t",
            vector=SUM,
            values_digest=b"d",
            noise=np.zeros(count, np.int64),
        )
