import hmac
import math
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from numpy.typing import NDArray

import helper.executors.processes  # noqa: F401 # says what its own processes are sent
from maskedlark.numbers.field import negate, random_vector
from maskedlark.randomness import Stream, below, derive_key
from maskedlark.reports.helper_pair_key import PairKey, ViewKey

KEY = PairKey(secret=bytes(range(32)), role=1)


def test_a_view_key_that_travelled_to_a_worker_tags_as_before() -> None:
    travelled = pickle.loads(ForkingPickler.dumps(KEY.view_key))  # noqa: S301 # our own bytes
    assert travelled.tag(b"i" * 16, b"view") == KEY.view_key.tag(b"i" * 16, b"view")
    assert "<redacted>" in repr(travelled)
    assert "<redacted>" in repr(KEY)


@pytest.mark.parametrize(("count", "wanted"), [(0, 0), (5, 0), (5, 5), (1, 1), (1_000, 999), (1_000, 37)])
def test_padding_is_as_much_as_is_wanted_and_the_same_at_both_helpers(count: int, wanted: int) -> None:
    chosen = KEY.padding(b"round", count, wanted)
    assert chosen.shape == (count,)
    assert chosen.sum() == wanted
    assert (chosen == PairKey(secret=bytes(range(32)), role=0).padding(b"round", count, wanted)).all()
    if count > wanted > 0:
        assert (chosen != KEY.padding(b"another", count, wanted)).any()


def test_any_record_is_as_likely_padding_as_any_other() -> None:
    often = sum(KEY.padding(index.to_bytes(4, "little"), 64, 16).astype(int) for index in range(4_000))
    assert np.abs(often - 1_000).max() < 6 * np.sqrt(4_000 * 0.25 * 0.75)


@pytest.mark.parametrize("word", [b"\1\0\0\0", b"\xff" * 4])
def test_padding_is_as_much_as_is_wanted_where_many_records_draw_alike(
    monkeypatch: pytest.MonkeyPatch, word: bytes
) -> None:
    monkeypatch.setattr(
        "maskedlark.reports.helper_pair_key.Stream", lambda _: lambda size: word * (size // 4)
    )
    assert KEY.padding(b"round", 9, 4).tolist() == [True] * 4 + [False] * 5


@pytest.mark.parametrize(("count", "wanted"), [(100_000, 1), (100_000, 137), (1_000, 900), (70, 69)])
def test_padding_are_the_records_of_the_least_words_and_few_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, count: int, wanted: int
) -> None:
    lengths, partition = [], np.partition

    def counted(words: NDArray[np.uint32], place: int) -> NDArray[np.uint32]:
        lengths.append(len(words))
        return partition(words, place)

    monkeypatch.setattr(np, "partition", counted)
    words = np.frombuffer(Stream(derive_key(bytes(range(32)), b"padding", b"round"))(4 * count), "<u4")
    least = np.zeros(count, np.bool_)
    least[np.argsort(words, kind="stable")[:wanted]] = True
    assert (KEY.padding(b"round", count, wanted) == least).all()
    assert lengths[0] <= min(count, wanted + 16 * math.isqrt(wanted) + 100)


def test_a_sample_is_of_the_words_below_its_numerator() -> None:
    words = np.frombuffer(Stream(derive_key(bytes(range(32)), b"sample", b"round"))(4 * 1_000), "<u4")
    for numerator in (0, 1, int(words[7]), int(words[7]) + 1, 1 << 31, 1 << 32):
        expected = [int(word) < numerator for word in words]
        assert KEY.sample(b"round", 1_000, numerator).tolist() == expected


def test_each_purpose_has_its_own_key_of_the_pairs_secret() -> None:
    """Two helpers of different releases work together only as long as these stay what they are."""
    secret = bytes(range(32))
    assert KEY.view_key.tag(b"i", b"view") == ViewKey(derive_key(secret, b"view")).tag(b"i", b"view")
    stream = Stream(derive_key(secret, b"common noise", b"round"))
    assert KEY.common_noise(b"round")(64) == stream(64)
    blind = random_vector(70_000, Stream(derive_key(secret, b"blind", b"round")))
    assert (PairKey(secret=secret, role=0).blind(b"round", 70_000) == blind).all()
    assert (KEY.blind(b"round", 70_000) == negate(blind)).all()
    context = b"digest" + (3).to_bytes(8, "little")
    slots = below(7, 50, Stream(derive_key(secret, b"slots", context)))
    assert KEY.slots(b"digest", 3, 50, 7).tolist() == slots.tolist()
    tag = hmac.digest(derive_key(secret, b"agreement"), b"round" + b"values", "sha256")
    assert KEY.agreement_tag(b"round", b"values") == tag
