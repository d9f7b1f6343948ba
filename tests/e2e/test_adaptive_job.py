"""A job whose clip bound follows a quantile, from the ad server's worker through gRPC to both helpers and
back.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adserver.records.job_state import JobState
from adserver.records.training_plan import TrainingPlan
from adserver.store.job_folder import JobFolder
from adserver.training.trainer import Checkpoint
from maskedlark.errors import JobReason
from maskedlark.model import weights
from maskedlark.privacy.adaptive_clip import AdaptiveClip, RoundInput, on_grid
from maskedlark.randomness import seeded
from tests.audit.site import Site, open_site
from tests.builders import examples, job_spec
from tests.e2e.small_adserver import AdServer, Diverted
from tests.refusals import refused
from tests.training_plans import training_plan

RECORDS = 200


@pytest.fixture(params=["none", "gaussian"])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    with open_site(
        tmp_path,
        seed=5,
        mechanism=request.param,
        clip_norm=4.0,
        epsilon=1e5,
        collusion_epsilon=1e5,
        delta=1e-6,
        num_features=4,
    ) as opened:
        yield opened


def plan_for(site: Site, dataset: bytes, rounds: int, **changes: Any) -> TrainingPlan:
    spec = job_spec(
        task_id=site.task.task_id,
        dataset_id=dataset,
        model_digest=site.model.digest,
        rounds=rounds,
        noise_multiplier=0.0 if site.task.mechanism == "none" else 1.0,
        is_clip_adaptive=True,
    )
    given = {"adaptive_clip": AdaptiveClip(quantile=0.5, initial=0.01), **changes}
    # The model stays where it is: its norms can be computed in the clear.
    return training_plan(site.task, spec, records=RECORDS, learning_rate=1e-6, **given)


def plain_norms(site: Site, people: list[Any]) -> Any:
    weight, bias = (weights.quantise(values).to_float() for values in site.model.initial_values)
    x = np.array([[*(person.features / 256.0), 1.0] for person in people])
    logits = x @ np.append(weight, bias)
    deltas = 1 / (1 + np.exp(-logits)) - np.array([person.label for person in people])
    return np.abs(deltas) * np.linalg.norm(x, axis=1)


def test_the_bound_settles_at_the_quantile_of_the_gradients_norms(tmp_path: Path, site: Site) -> None:
    people = examples(site.task, RECORDS, seeded(9, "people"))
    plan = plan_for(site, site.seal(people), rounds=60)
    server = AdServer(tmp_path / "adserver", site, Diverted(client=site.clients[1]))
    server.run(plan)
    job = server.store.get(plan.job.job_id)
    assert job.state is JobState.DONE, job.stop
    stored = JobFolder(server.data, plan.job.job_id).checkpoint()
    assert stored is not None
    bound = Checkpoint.decode(stored).clip_share * site.task.clip_norm
    assert bound == pytest.approx(float(np.median(plain_norms(site, people))), rel=0.12)
    assert [core.status().counts.rounds_answered for core in site.cores] == [60, 60]


def test_the_same_round_with_another_bound_is_refused_and_other_bounds_at_the_helpers_are_noticed(
    tmp_path: Path, site: Site
) -> None:
    plan = plan_for(site, site.seal(examples(site.task, RECORDS)), rounds=3)
    for client in site.clients:
        client.start_job(plan.job, site.onnx)
    encoded = weights.encode([weights.quantise(values) for values in site.model.initial_values])
    first, other = (RoundInput(weights=encoded, bound=bound).encode() for bound in (1.0, 2.0))
    share = site.clients[0].run_round(plan.job, 0, first, 6)
    assert site.clients[0].run_round(plan.job, 0, first, 6).encode() == share.encode()
    with refused(JobReason.ROUND_CHANGED):
        site.clients[0].run_round(plan.job, 0, other, 6)
    assert site.clients[1].run_round(plan.job, 0, other, 6).agreement_tag != share.agreement_tag


@pytest.mark.parametrize("bound", [4.0001, 0.0, float("nan")])
def test_a_helper_refuses_a_bound_above_the_tasks(site: Site, bound: float) -> None:
    plan = plan_for(site, site.seal(examples(site.task, RECORDS)), rounds=3)
    site.clients[0].start_job(plan.job, site.onnx)
    encoded = weights.encode([weights.quantise(values) for values in site.model.initial_values])
    for sent in (RoundInput(weights=encoded, bound=bound).encode(), encoded, encoded + bytes(7)):
        with refused(JobReason.MALFORMED):
            site.clients[0].run_round(plan.job, 0, sent, 6)
    assert site.cores[0].status().counts.rounds_answered == 0


def test_a_job_that_is_taken_up_again_goes_on_with_the_bound_that_it_had(tmp_path: Path, site: Site) -> None:
    plan = plan_for(site, site.seal(examples(site.task, RECORDS)), rounds=6)
    disturbed = Diverted(client=site.clients[1], weights_at=3)
    server = AdServer(tmp_path / "adserver", site, disturbed)
    server.run(plan)
    assert server.store.get(plan.job.job_id).rounds_done == 3
    stored = JobFolder(server.data, plan.job.job_id).checkpoint()
    assert stored is not None
    assert Checkpoint.decode(stored).clip_share > 0.01
    assert on_grid(Checkpoint.decode(stored).clip_share) != on_grid(0.01)
