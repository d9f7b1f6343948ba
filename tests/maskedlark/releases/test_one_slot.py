"""A record of a job with correlated noise has one slot for all epochs; of others, one of its own in each."""

import numpy as np

from tests.maskedlark.releases.test_correlated_charges import CARRIED, EPOCHS, STEPS, correlated_job
from tests.maskedlark.releases.test_split_noise import FULL

RECORDS = 200


def test_a_record_is_in_the_same_step_of_all_epochs_if_noise_is_correlated() -> None:
    for carried in (CARRIED, None):
        spec, pair = correlated_job(carried=carried), FULL.pair(0)
        sampled = np.stack(
            [spec.draw_sample(pair, index, bytes(32), RECORDS) for index in range(STEPS * EPOCHS)]
        ).reshape(EPOCHS, STEPS, RECORDS)
        assert (sampled.sum(axis=1) == 1).all()
        is_one_slot = (sampled == sampled[0]).all()
        assert is_one_slot == (carried is not None)


def test_slots_of_another_job_are_others() -> None:
    pair = FULL.pair(0)
    first, second = (
        correlated_job(job_id=name * 16).draw_sample(pair, 0, bytes(32), RECORDS) for name in (b"a", b"b")
    )
    assert (first != second).any()
