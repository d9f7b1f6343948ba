"""Jobs without helpers: what they may say, what an update costs, and the bytes that travel."""

import math
from typing import Any

import numpy as np
import pytest

from maskedlark.canonical import decode, encode
from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.kinds import NoiseUnit
from maskedlark.federated.local_description import LocalJob
from maskedlark.federated.local_job import (
    LocalUpdate,
    check_epsilon,
    cost_of,
    local_job,
    read_local_job,
)
from maskedlark.randomness import seeded
from tests.maskedlark.federated.local_world import (
    DRAWS_ID,
    LINE_ID,
    PARAMETERS,
    draws,
    draws_job,
    line,
    line_job,
)
from tests.refusals import refused


@pytest.mark.parametrize("job", [line_job(), draws_job()])
def test_a_job_travels_and_is_read_as_it_was_made(job: LocalJob) -> None:
    read = read_local_job(decode(LocalJob, encode(job)))
    assert read.settings in (line(), draws())
    assert read.model.size == PARAMETERS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sampling_rate": 0.5}, "sampling_rate is 1"),
        (
            {"bound": UpdateBound(clip_norm=1.0, is_weight_summed=True), "least_weight": 1.0},
            "is_weight_summed and quantile",
        ),
        ({"devices": 1 << 39}, "62 bits"),
    ],
)
def test_settings_that_need_helpers_or_overflow_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        line_job(**change)


@pytest.mark.parametrize("widths", [(4, 3, 2), (130_000, 2)])
def test_draw_and_discard_takes_a_regression_of_a_size_that_is_sent(widths: tuple[int, ...]) -> None:
    with pytest.raises(InvalidTask):
        local_job(DRAWS_ID, draws(), widths)


def test_a_model_too_large_to_send_is_refused() -> None:
    with pytest.raises(InvalidTask, match="at most"):
        local_job(LINE_ID, line(), (20_000, 10))


def test_a_whole_update_costs_each_coordinates_epsilon_but_in_model_mode() -> None:
    assert cost_of(line_job()).whole_update == 1.0
    assert cost_of(draws_job()).whole_update == 0.5 * PARAMETERS
    assert cost_of(draws_job(unit=NoiseUnit.MODEL)).whole_update == 0.5
    assert math.isinf(cost_of(draws_job(epsilon=None)).whole_update)


def test_a_device_refuses_a_job_that_costs_more_than_its_owner_allows() -> None:
    check_epsilon(draws_job(), 5.0)
    for job in (draws_job(), draws_job(epsilon=None)):
        with pytest.raises(InvalidTask, match="allows"):
            check_epsilon(job, 4.99)


def test_an_update_travels_and_another_length_or_place_is_refused() -> None:
    update = LocalUpdate(update_id=b"u" * 16, position=7, vector=np.arange(-3, PARAMETERS - 3))
    read = LocalUpdate.decode(update.encode(), PARAMETERS)
    assert (read.update_id, read.position) == (update.update_id, 7)
    assert (read.vector == update.vector).all()
    for body in (b"", update.encode()[:-1], update.encode() + b"\0"):
        with refused(ReportReason.WRONG_LENGTH):
            LocalUpdate.decode(body, PARAMETERS)
    before = LocalUpdate(update_id=b"u" * 16, position=-1, vector=update.vector)
    with refused(ReportReason.MALFORMED):
        LocalUpdate.decode(before.encode(), PARAMETERS)


def test_honest_updates_stay_within_the_largest_value() -> None:
    from tests.maskedlark.federated.federated_world import examples

    read = read_local_job(line_job())
    asked = line().next_round(line().start(read.model.initial(seeded(1))))  # type: ignore[union-attr]
    assert asked is not None
    held = [examples(2, number, features=4, classes=2) for number in range(200)]
    vectors = line().device_vectors(read.model, asked, held, [seeded(n) for n in range(200)])  # type: ignore[arg-type]
    assert np.abs(vectors).max() <= line().largest_value(PARAMETERS)
    assert np.abs(vectors).max() > line().largest_value(PARAMETERS) / 10
