"""An ad server, or somebody on its way, shows the two helpers different things.

Over gRPC, with the real worker and optimizer.

Each time the sum is uniform, the job stops before the optimizer steps, and each helper has charged one round,
however often it is resumed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adserver.records.job_state import JobState
from adserver.records.training_plan import TrainingPlan
from adserver.store.job_folder import JobFolder
from maskedlark.errors import JobReason
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import reconstruct
from maskedlark.randomness import seeded
from tests.audit.site import Site, open_site
from tests.builders import examples, job_spec
from tests.e2e.small_adserver import AdServer, Diverted
from tests.helper.parties import make_model
from tests.training_plans import training_plan

NUM_FEATURES = 2_000
RECORDS = 30
ROUNDS = 3
MODEL = make_model(NUM_FEATURES)
OTHER_MODEL = MODEL.replace(np.float32(0.25).tobytes(), np.float32(0.125).tobytes())
"""Of the same shapes; the bias begins elsewhere."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(
        tmp_path,
        seed=3,
        model=MODEL,
        num_features=NUM_FEATURES,
        max_dataset_size=1_000,
        mechanism="gaussian",
        epsilon=100.0,
        collusion_epsilon=100.0,
        delta=1e-6,
    ) as opened:
        yield opened


def plan_for(site: Site, dataset: bytes) -> TrainingPlan:
    spec = job_spec(
        task_id=site.task.task_id,
        dataset_id=dataset,
        model_digest=site.model.digest,
        rounds=ROUNDS,
        noise_multiplier=2.0,
    )
    return training_plan(site.task, spec, records=RECORDS)


def seal(site: Site, seed: int) -> bytes:
    return site.seal(examples(site.task, RECORDS, seeded(seed, "people of the e2e")))


@pytest.mark.parametrize("difference", ["weights", "parameters", "function", "dataset"])
def test_what_differs_gives_garbage_no_step_and_one_charge(
    tmp_path: Path, site: Site, difference: str
) -> None:
    dataset, other_dataset = seal(site, 0), seal(site, 1)
    plan = plan_for(site, dataset)
    changes: dict[str, dict[str, Any]] = {
        "weights": {"weights_at": 0},
        "parameters": {"job": {"noise_multiplier": 2.5}},
        "function": {"job": {"loss": Loss.MSE}},
        "dataset": {"job": {"dataset_id": other_dataset}},
    }
    second = Diverted(client=site.clients[1], **changes[difference])
    server = AdServer(tmp_path / "adserver", site, second)
    server.run(plan)

    job = server.store.get(plan.job.job_id)
    assert (job.state, job.rounds_done) == (JobState.REFUSED, 0)
    assert job.stop is not None
    assert job.stop.reason == JobReason.HELPERS_DISAGREE
    assert JobFolder(server.data, plan.job.job_id).checkpoint() is None  # no step was taken

    shares = [helper.answers[0] for helper in server.helpers]
    assert_uniform(reconstruct(shares[0].vector, shares[1].vector))
    assert shares[0].agreement_tag != shares[1].agreement_tag

    server.store.resume(plan.job.job_id)
    server.go_on()
    assert [core.status().counts.rounds_answered for core in site.cores] == [1, 1]
    assert (
        server.helpers[0].answers[-1].encode() == shares[0].encode()
    )  # the stored answer: the same noise, nothing new
    assert server.store.get(plan.job.job_id).rounds_done == 0


def test_another_model_is_refused_before_anything_is_charged(tmp_path: Path, site: Site) -> None:
    assert parse(OTHER_MODEL, num_features=NUM_FEATURES).num_parameters == NUM_FEATURES + 1
    plan = plan_for(site, seal(site, 0))
    server = AdServer(
        tmp_path / "adserver", site, Diverted(client=site.clients[1], model=make_model(NUM_FEATURES, 2))
    )
    server.run(plan)
    assert server.store.get(plan.job.job_id).state is JobState.REFUSED
    assert [core.status().counts.rounds_answered for core in site.cores] == [0, 0]


def test_weights_that_differ_in_a_later_round_keep_the_steps_before(tmp_path: Path, site: Site) -> None:
    plan = plan_for(site, seal(site, 0))
    server = AdServer(tmp_path / "adserver", site, Diverted(client=site.clients[1], weights_at=1))
    server.run(plan)
    job = server.store.get(plan.job.job_id)
    assert (job.state, job.rounds_done) == (JobState.REFUSED, 1)
    assert [core.status().counts.rounds_answered for core in site.cores] == [2, 2]


def test_helpers_that_are_shown_the_same_train(tmp_path: Path, site: Site) -> None:
    plan = plan_for(site, seal(site, 0))
    server = AdServer(tmp_path / "adserver", site, Diverted(client=site.clients[1]))
    server.run(plan)
    assert server.store.get(plan.job.job_id).state is JobState.DONE
    first, second = (helper.answers[0] for helper in server.helpers)
    assert first.agreement_tag == second.agreement_tag
    with pytest.raises(AssertionError):
        assert_uniform(reconstruct(first.vector, second.vector))


def assert_uniform(vector: Any) -> None:
    counts = np.bincount(np.ascontiguousarray(vector).view(np.uint8), minlength=256)
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert 255 - 6 * np.sqrt(510) < chi_square < 255 + 6 * np.sqrt(510)
