"""What is typed to forecast a job."""

import pytest

from adserver.dashboard.forecast_form import ForecastForm
from maskedlark.errors import InvalidTask


def test_an_empty_form_asks_nothing_and_fields_that_were_left_out_are_chosen() -> None:
    assert ForecastForm.read({}) is None
    assert ForecastForm.read({"rounds": "20", "noise_multiplier": "1.5"}) == ForecastForm(
        rounds=20, noise_multiplier=1.5
    )


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        *(("rounds", typed) for typed in ("0", "-5", "10000000000000", "many")),
        *(("batch_size", typed) for typed in ("0", "-1", "nan", "inf", "x")),
        *(("noise_multiplier", typed) for typed in ("0", "-1", "nan", "inf", "x")),
    ],
)
def test_a_number_that_no_job_has_is_a_wrong_setting(field: str, typed: str) -> None:
    with pytest.raises(InvalidTask):
        ForecastForm.read({"rounds": "20", field: typed})
