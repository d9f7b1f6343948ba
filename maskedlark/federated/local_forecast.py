"""What a job without helpers will cost a person, and how much noise it will meet, before it is submitted.

expected = forecast(job, updates_each=3)      # ad server, for `adserver job plan --no-helpers`
expected.person_epsilon, expected.update_noise, expected.model_noise
"""

import math

from maskedlark.federated.local_description import LocalJob
from maskedlark.federated.local_job import LocalCost, LocalUpdate, cost_of, read_local_job
from maskedlark.federated.single_use_logs import OneUseLogs
from maskedlark.federated.strategies.line import Line
from maskedlark.frozen import frozen


@frozen
class LocalForecast:
    """The cost and the noise of a job.

    Units: noise is the standard deviation of one coordinate, in the units of weights; 0 without noise.

    Attributes:
        cost: Of one update.
        updates_each: How many updates a person sends.
        person_epsilon: Of all of them, if all that the person's device holds is replaced; at `cost.delta`.
        upload_bytes: Of one update.
        update_noise: Of one update.
        model_noise: LINE: of the mean of a round's updates. Draw and discard: of one instance about the mean
            of all, updates one at a time.
        updates: LINE: how many all rounds take; None where a job has no end.
    """

    cost: LocalCost
    updates_each: int
    person_epsilon: float
    upload_bytes: int
    update_noise: float
    model_noise: float
    updates: int | None


def forecast(job: LocalJob, *, updates_each: int) -> LocalForecast:
    """Predict a job's cost and the attacks that it withstands. Pure; called by the ad server.

    Updates of LINE compose as Gaussians do, those of draw and discard by addition.

    Raises:
        InvalidTask, InvalidModel: as `read_local_job`.
    """
    settings, model = read_local_job(job)
    cost, length = cost_of(job), LocalUpdate.num_bytes(model.size)
    if isinstance(settings, Line):
        events = OneUseLogs(used_events=updates_each)
        noise = math.ldexp(settings.noise_units, -settings.bound.frac_bits)
        return LocalForecast(
            cost=cost,
            updates_each=updates_each,
            person_epsilon=events.user_epsilon(settings.sigma, settings.delta),
            upload_bytes=length,
            update_noise=noise,
            model_noise=noise / math.sqrt(settings.devices),
            updates=settings.rounds * settings.devices,
        )
    is_noisy = settings.epsilon is not None
    return LocalForecast(
        cost=cost,
        updates_each=updates_each,
        person_epsilon=updates_each * cost.whole_update,
        upload_bytes=length,
        update_noise=math.sqrt(settings.noise_variance) if is_noisy else 0.0,
        # Without noise too: instances then begin as far apart as with `INITIAL_EPSILON`.
        model_noise=math.sqrt(settings.spread()),
        updates=None,
    )
