import pytest

from tests.bench.job_table import BEGIN, END, PAGE, ROWS, table, written

RAN = {
    "mnist_cpu_s": 25.439,
    "mnist_plain_cpu_s": 0.402,
    "mnist_cpu_s_over_plain": 63.346,
    "hpke_seal_us": 78.663,
    "hpke_open_us": 45.955,
    "mnist_floor_over_plain": 12.413,
    "mnist_reports_per_s_per_core": 1786.194,
    "intake_us_per_report": 108.5,
    "upload_us_per_report": 474.5,
    "cli_wait_cpu_s": 0.639,
    "helper_ms_per_round_mnist": 33.3,
    "adserver_ms_per_round_mnist": 14.4,
    "helper_ms_per_round_tiny": 12.917,
    "adserver_ms_per_round_tiny": 13.0,
    "processor": "a processor with AVX2",
    "cores": 2,
    "jobs": {"mnist": {"reports": 20000, "phases": {"prepare": {"helper-0": 2.0, "helper-1": 2.2}}}},
}


def test_the_table_has_a_row_for_every_figure_of_the_run() -> None:
    lines = table(RAN).splitlines()
    assert len(lines) == 2 + len(ROWS)
    assert "| each helper opens, a report | 105 us |" in lines
    assert "| reports a second and core, from browser to model | 1,786 |" in lines
    assert "| a round at each helper; at the ad server | 33.3 ms; 14.4 ms |" in lines


def test_a_table_is_replaced_and_nothing_else_of_the_page_is() -> None:
    page = f"before\n{BEGIN}old\n{END}after\n"
    once = written(page, RAN)
    assert once == f"before\n{BEGIN}\n{table(RAN)}\n{END}after\n"
    assert written(once, RAN) == once


def test_the_page_of_the_documentation_has_a_place_for_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert all(what in page for what in ROWS)


def test_a_page_without_a_place_for_the_table_is_left_alone() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        written("no table here\n", RAN)
