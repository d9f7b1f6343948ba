import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from helper.datasets.duplicate_filter import SeenIds
from maskedlark.randomness import seeded


def ids(numbers: list[int]) -> NDArray[np.uint8]:
    rows = [number.to_bytes(16, "big") for number in numbers]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 16)


@given(st.lists(st.lists(st.integers(0, 40) | st.integers(0, 2**128 - 1), max_size=30), max_size=12))
def test_an_id_came_before_exactly_if_a_set_says_so(chunks: list[list[int]]) -> None:
    seen, known = SeenIds(), set[int]()
    for chunk in chunks:
        expected = []
        for number in chunk:
            expected.append(number in known)
            known.add(number)
        assert seen.add(ids(chunk)).tolist() == expected


def test_eight_bytes_are_kept_of_an_id() -> None:
    seen = SeenIds(seeded(1))
    for start in range(0, 4_096, 64):
        assert not seen.add(ids(list(range(start, start + 64)))).any()
    assert sum(run.nbytes for run in seen._runs) == 8 * 4_096
    assert len(seen._runs) < 8
    assert seen.add(ids([4_095, 4_096, 0])).tolist() == [True, False, True]


def test_runs_are_merged_once_the_newer_one_has_half_as_many() -> None:
    """So an id is sorted again a few times in all, and looked for in few runs."""
    seen, start, lengths = SeenIds(seeded(2)), 0, []
    for count in (100, 49, 24, 12, 1, 30):
        seen.add(ids(list(range(start, start + count))))
        start += count
        lengths.append([len(run) for run in seen._runs])
    assert lengths == [[100], [100, 49], [100, 49, 24], [185], [185, 1], [185, 31]]
    for run in seen._runs:
        assert (run[1:] > run[:-1]).all()
    assert seen._hashes(ids([7])).tobytes() == seen._blocks.encryptor().update(ids([7]).tobytes())[:8]
