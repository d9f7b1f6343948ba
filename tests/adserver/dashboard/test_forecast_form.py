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


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"rounds": "1e3"}, "rounds is '1e3': expected a whole number in digits alone, as 1000"),
        ({"rounds": "20", "batch_size": "x"}, "reports in a round is 'x': expected a number"),
    ],
)
def test_what_is_no_number_is_said_with_its_field_and_what_was_expected(
    typed: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidTask) as refusal:
        ForecastForm.read(typed)
    assert str(refusal.value) == said
