"""Who may use threads: the engine, over records, and nothing below it."""

import pytest
from threadpoolctl import threadpool_info

from helper.gradient.exact.engine import _cut
from helper.gradient.exact.products.float64 import Float64Backend
from helper.gradient.exact.products.int8 import Int8Backend


def test_the_products_below_an_engine_run_on_one_thread() -> None:
    Int8Backend()
    Float64Backend()
    assert [pool["num_threads"] for pool in threadpool_info() if "numpy.libs" in pool["filepath"]] == [1]


@pytest.mark.parametrize(
    ("records", "record_ns", "parts"),
    [
        (0, 5_000.0, 1),
        (500, 4_000.0, 1),  # a tiny model: 2 ms in all
        (2_300, 4_500.0, 1),
        (2_000, 32_000.0, 4),
        (512, 1_000_000.0, 4),
        (200, 1_000_000.0, 2),  # too few records for more
    ],
)
def test_a_round_is_cut_into_parts_that_are_worth_a_thread(
    records: int, record_ns: float, parts: int
) -> None:
    found = _cut(records, 4, record_ns)
    assert len(found) == parts
    assert [record for part in found for record in part] == list(range(records))
