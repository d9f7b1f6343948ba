"""The expansion of role 0's seed: bound to its report, canonical, and equal for one report and for many."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from maskedlark.numbers.field import MODULUS
from maskedlark.reports import share_seed
from maskedlark.reports.share_seed import Expander, expand_share, expand_shares
from tests import reference

SEED, TASK, REPORT = bytes(range(32)), b"t" * 32, b"r" * 16


class Words:
    """A stream of given words, in whatever pieces it is read."""

    def __init__(self, *words: int) -> None:
        self.rest = np.array(words, "<u8").tobytes()

    def __call__(self, count: int) -> bytes:
        piece, self.rest = self.rest[:count], self.rest[count:]
        return piece


def test_a_seed_expands_to_the_words_of_its_stream() -> None:
    expected = reference.field_elements(reference.hkdf_expand(SEED, b"share", TASK + REPORT + b"\0"), 40)
    assert expand_share(SEED, TASK, REPORT, 0, 40).tolist() == expected


@pytest.mark.parametrize(
    "other",
    [
        lambda: expand_share(b"\1" * 32, TASK, REPORT, 0, 4),
        lambda: expand_share(SEED, b"u" * 32, REPORT, 0, 4),
        lambda: expand_share(SEED, TASK, b"s" * 16, 0, 4),
        lambda: expand_share(SEED, TASK, REPORT, 1, 4),
    ],
    ids=["seed", "task", "report", "role"],
)
def test_the_share_of_another_binding_has_no_element_in_common(other: Callable[[], np.ndarray]) -> None:
    assert not set(other().tolist()) & set(expand_share(SEED, TASK, REPORT, 0, 4).tolist())


def test_a_shorter_share_is_the_beginning_of_a_longer_one() -> None:
    longer = expand_share(SEED, TASK, REPORT, 0, 1_000)
    assert expand_share(SEED, TASK, REPORT, 0, 17).tolist() == longer[:17].tolist()


@pytest.mark.parametrize(
    ("words", "kept"),
    [([5, MODULUS, 2**64 - 1, MODULUS - 1, 7, 8, 9], [5, MODULUS - 1, 7, 8]), ([MODULUS, 7, 8, 9], [7])],
)
def test_words_at_or_above_the_modulus_are_skipped_and_reading_goes_on(
    words: list[int], kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_seed, "Stream", lambda _: Words(*words))
    stream = SimpleNamespace(update=lambda zeros: Words(*words)(len(zeros)))
    monkeypatch.setattr(share_seed, "_encryptor", lambda *_: stream)
    assert expand_share(SEED, TASK, REPORT, 0, len(kept)).tolist() == kept
    assert expand_shares([SEED], TASK, [REPORT], 0, len(kept)).tolist() == [kept]


def test_many_seeds_expand_as_each_one_alone() -> None:
    seeds, reports = [bytes([i]) * 32 for i in range(5)], [bytes([i]) * 16 for i in range(5)]
    table = expand_shares(seeds, TASK, reports, 0, 9)
    assert table.tolist() == [
        expand_share(seed, TASK, report, 0, 9).tolist() for seed, report in zip(seeds, reports, strict=True)
    ]


def test_no_seed_gives_an_empty_table() -> None:
    assert expand_shares([], TASK, [], 0, 9).shape == (0, 9)


def test_seeds_expanded_one_after_the_other_give_the_same_elements() -> None:
    expander = Expander(task_id=TASK, role=0, length=1_000)
    for number in range(4):
        seed = bytes([number]) * 32
        assert (expander.expand(seed, REPORT) == expand_share(seed, TASK, REPORT, 0, 1_000)).all()


def test_an_element_that_is_skipped_is_skipped_in_the_kept_array_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in 2^32 is: here a modulus that skips half of them stands for it."""
    monkeypatch.setattr("maskedlark.reports.share_seed.MODULUS", 1 << 63)
    expected = np.arange(3, dtype=np.uint64)
    monkeypatch.setattr("maskedlark.reports.share_seed.expand_share", lambda *_: expected)
    assert Expander(task_id=TASK, role=0, length=100).expand(SEED, REPORT) is expected
