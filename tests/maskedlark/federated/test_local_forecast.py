"""What a job without helpers is said to cost beforehand, against the samplers and the accountant."""

import math

import numpy as np
import pytest

from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.kinds import NoiseUnit
from maskedlark.federated.local_forecast import forecast
from maskedlark.federated.local_job import LocalUpdate
from maskedlark.privacy.composing.analytic_gaussian import gaussian_delta
from maskedlark.privacy.samplers import discrete_gaussian
from maskedlark.randomness import seeded
from tests.maskedlark.federated.local_world import PARAMETERS, draws_job, line, line_job


def test_line_noise_is_that_of_the_sampler_and_falls_with_the_devices() -> None:
    job = line_job(devices=16)
    found = forecast(job, updates_each=1)
    settings = line(devices=16)
    drawn = discrete_gaussian(settings.noise_units, 20_000, seeded(1)) / 2.0**settings.bound.frac_bits
    assert found.update_noise == pytest.approx(float(np.std(drawn)), rel=0.03)
    assert found.model_noise == found.update_noise / 4
    assert found.updates == 2 * 16


def test_a_person_of_line_pays_for_all_updates_as_gaussians_compose() -> None:
    settings = line()
    found = forecast(line_job(), updates_each=9)
    assert gaussian_delta(settings.sigma / 3, found.person_epsilon) == pytest.approx(settings.delta)
    once = forecast(line_job(), updates_each=1)
    assert once.person_epsilon == pytest.approx(settings.epsilon, rel=1e-6)


def test_draws_of_a_person_add_up_and_without_noise_cost_everything() -> None:
    found = forecast(draws_job(unit=NoiseUnit.MODEL), updates_each=3)
    assert (found.cost.whole_update, found.person_epsilon, found.updates) == (0.5, 1.5, None)
    silent = forecast(draws_job(epsilon=None), updates_each=1)
    assert (silent.person_epsilon, silent.update_noise) == (math.inf, 0.0)


def test_the_noise_of_an_instance_is_the_stationary_one() -> None:
    found = forecast(draws_job(), updates_each=1)
    settings = DrawAndDiscard(instances=4, learning_rate=0.01, epsilon=0.5)
    assert found.model_noise == pytest.approx(math.sqrt(2) * found.update_noise)
    assert found.update_noise == pytest.approx(math.sqrt(8) * 0.01 / 0.5, rel=1e-4)
    assert settings.spread() == pytest.approx(found.model_noise**2)


def test_the_bytes_of_an_update_are_those_that_a_device_sends() -> None:
    sent = LocalUpdate(update_id=bytes(16), position=0, vector=np.zeros(PARAMETERS, np.int64)).encode()
    assert forecast(line_job(), updates_each=1).upload_bytes == len(sent)
