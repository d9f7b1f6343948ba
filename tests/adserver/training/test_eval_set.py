"""An evaluation set in parts."""

import numpy as np

from adserver.training.eval_set import EvalSet


def test_parts_hold_each_row_once_and_each_label() -> None:
    rows = EvalSet(features=np.arange(33, dtype=np.uint8)[:, None], labels=(np.arange(33) % 5 == 0) * 1)
    parts = rows.parts(4, np.random.default_rng(3))
    assert sorted(np.concatenate(parts)) == list(range(33))
    assert {len(part) for part in parts} == {8, 9}
    for part in parts:
        taken = rows.take(part)
        assert set(taken.labels) == {0, 1}
        assert taken.features[:, 0].tolist() == part.tolist()
    assert [len(part) for part in rows.parts(4, np.random.default_rng(4))] == [len(part) for part in parts]
