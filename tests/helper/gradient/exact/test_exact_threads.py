"""Who may use threads: the engine, over records, and nothing below it."""

from threadpoolctl import threadpool_info

from helper.gradient.exact.products.float64 import Float64Backend
from helper.gradient.exact.products.int8 import Int8Backend


def test_the_products_below_an_engine_run_on_one_thread() -> None:
    Int8Backend()
    Float64Backend()
    assert [pool["num_threads"] for pool in threadpool_info() if "numpy.libs" in pool["filepath"]] == [1]
