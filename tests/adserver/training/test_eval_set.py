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


def test_all_rows_of_a_person_are_in_one_part_and_parts_have_about_as_many_rows() -> None:
    people = np.repeat(np.arange(30), np.arange(30) % 5 + 1)
    rows = EvalSet(features=np.zeros((len(people), 1), np.uint8), labels=people % 2, people=people)
    assert rows.num_people == 30
    parts = rows.parts(4, np.random.default_rng(3))
    assert sorted(np.concatenate(parts)) == list(range(len(people)))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    taken = [rows.take(part) for part in parts]
    assert sum(part.num_people for part in taken) == 30
    again = rows.parts(4, np.random.default_rng(4))
    assert [part.tolist() for part in parts] != [part.tolist() for part in again]
