"""`adserver budget` and `adserver job plan` from the command line.

What they say is what submitting and running then does.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from sqlalchemy import insert
from typer.testing import CliRunner, Result

from adserver.cli.main import app
from adserver.peers.retrying import Backoff
from adserver.records.dataset_state import DatasetState
from adserver.records.job_state import JobState
from adserver.records.training_plan import TrainingPlan
from adserver.store.schema import datasets
from adserver.store.tasks import TaskStore
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.privacy.accounting import spent
from maskedlark.releases.job import JobSpec
from maskedlark.terminal.budget_view import MORE_THAN_LEFT
from tests.adserver.job_world import ENCODED_MODEL, RECORDS, Site, sealed
from tests.builders import NOW

OF = sealed(mechanism="gaussian", expires_at=1 << 39)
NOWHERE = "ff" * 16  # a shorter one may be the start of an id, which is drawn anew in each run
Adserver = Callable[..., Result]
SUBMIT = (
    "job submit --model model.onnx --loss binary_cross_entropy_with_logits --batch-size 20"
    " --learning-rate 0.1 --clip-norm 1"
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A store with one task and one committed dataset."""
    made = Site(tmp_path / "data", OF)
    TaskStore(made.engine).add(OF.of.bundle, created_at=NOW)
    row = {
        "handle": bytes(16),
        "task_id": OF.of.task.task_id,
        "state": DatasetState.COMMITTED,
        "created_at": NOW,
        "received": RECORDS,
        "size": RECORDS,
        "dataset_id": OF.datasets[0].dataset_id,
    }
    with made.engine.begin() as connection:
        connection.execute(insert(datasets).values(row))
    (tmp_path / "model.onnx").write_bytes(ENCODED_MODEL)
    yield made
    made.engine.dispose()


@pytest.fixture
def adserver(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adserver:
    monkeypatch.setenv("ADSERVER_DATA", str(site.data_dir))
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> Result:
        result = CliRunner().invoke(app, line.split(), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result

    return run


def budget(adserver: Adserver, line: str = "") -> Any:
    (one,) = json.loads(adserver(f"budget --json {line}").stdout)
    return one


def test_the_relation_of_labels_is_shown_beside_the_budgets(adserver: Adserver) -> None:
    adserver(f"{SUBMIT} --rounds 4 --epsilon 2")
    plain, shown = budget(adserver), budget(adserver, "--relation label")
    assert plain == {**shown, "labels": None}
    assert shown["labels"]["ad_server"] > shown["ad_server"]["held"]
    assert shown["labels"]["colluding"] > shown["colluding"]["held"]
    printed = " ".join(adserver("budget --relation label").stdout.split())
    assert "spent reserved left budget label █spent" in printed
    for whom, name in (("ad_server", "ad server"), ("colluding", "with one helper")):
        row = f"{name} 0 {shown[whom]['reserved']:.4g} {shown[whom]['left']:.4g} {shown[whom]['budget']:.4g}"
        assert f"{row} {shown['labels'][whom]:.4g} " in printed
    assert "to tell one real label of a report from another" in printed
    assert "label:" not in adserver("budget").stdout
    assert "of zeroing one report" in printed


def test_a_fresh_dataset_has_its_whole_budget(adserver: Adserver) -> None:
    shown = budget(adserver)
    assert shown["ad_server"] == {"budget": 8.0, "spent": 0.0, "reserved": 0.0, "held": 0.0, "left": 8.0}
    assert (shown["uses"], shown["planned"]) == ([], None)


def test_what_a_next_job_may_ask_is_what_a_refusal_names(adserver: Adserver) -> None:
    adserver(SUBMIT.replace("--batch-size 20", "") + " --rounds 4 --epsilon 6")
    may_ask = budget(adserver)["next_epsilon"]
    # Not what is left: epsilons do not add up
    assert may_ask > budget(adserver)["ad_server"]["left"] > 1.9
    told = f"may ask for epsilon up to {may_ask:.4g} within both budgets, {MORE_THAN_LEFT} "
    assert told in " ".join(adserver("budget").stdout.split())
    full = SUBMIT.replace("--batch-size 20", "").split()
    refused = CliRunner().invoke(app, [*full, "--rounds", "1", "--epsilon", "7.9"])
    assert f"leave this job {may_ask:g}:" in str(refused.exception)
    adserver(f"{' '.join(full)} --rounds 1 --epsilon {may_ask}")
    assert budget(adserver)["next_epsilon"] < may_ask / 2


def test_a_queued_job_is_reserved_and_a_finished_one_is_spent(site: Site, adserver: Adserver) -> None:
    job_id = bytes.fromhex(adserver(f"{SUBMIT} --rounds 4 --noise-multiplier 4").stdout.strip())
    queued = budget(adserver)
    plan = site.store.get(job_id).plan
    assert isinstance(plan, TrainingPlan)
    cost = spent([plan.job.charge(plan.task, 4)], plan.task.delta)
    assert (queued["ad_server"]["spent"], queued["ad_server"]["reserved"]) == (
        0.0,
        pytest.approx(cost.ad_server),
    )
    site.worker().run_one()
    done = budget(adserver)
    assert done["ad_server"] == {**queued["ad_server"], "spent": queued["ad_server"]["held"], "reserved": 0.0}
    assert done["colluding"]["spent"] == pytest.approx(cost.colluding)
    assert [(one["id"], one["state"], one["rounds_held"]) for one in done["uses"]] == [
        (job_id.hex(), "done", 4)
    ]


def test_a_cancelled_job_keeps_only_the_rounds_that_the_helpers_charged(
    site: Site, adserver: Adserver
) -> None:
    adserver(f"{SUBMIT} --rounds 4 --noise-multiplier 4")
    site.helpers[1].failures = [JobRefused(JobReason.UNKNOWN_DATASET, "not yet")]
    assert "still reserves" not in adserver("budget").stdout
    site.worker().run_one()
    job = site.store.all()[0].job_id.hex()[:12]
    said = adserver("budget").stdout.replace("\n", " ")
    assert f"job {job} is refused and still reserves 4 rounds: `adserver job show {job}`" in said
    assert f"`adserver job cancel {job}` releases that" in said
    adserver("job cancel")
    assert budget(adserver)["uses"][0]["rounds_held"] == 4
    site.worker().run_one()  # nothing to run: the helpers are told
    assert budget(adserver)["uses"][0]["rounds_held"] == 0
    assert "still reserves" not in adserver("budget").stdout
    assert budget(adserver)["ad_server"]["left"] == 8.0


def test_the_round_that_a_helper_charged_and_the_ad_server_never_used_is_counted(
    site: Site, adserver: Adserver
) -> None:
    job_id = bytes.fromhex(adserver(f"{SUBMIT} --rounds 4 --noise-multiplier 4").stdout.strip())
    site.helpers[1].down_from_round = 2
    site.worker(backoff=Backoff(first_s=0.01, longest_s=0.02, give_up_after_s=1.0)).run_one()
    assert (site.store.get(job_id).state, site.store.get(job_id).rounds_done) == (JobState.FAILED, 2)
    adserver("job cancel")
    site.worker().run_one()
    assert budget(adserver)["uses"][0]["rounds_answered"] == 3


def test_people_see_bars_and_the_verdict_on_a_planned_job(adserver: Adserver) -> None:
    adserver(f"{SUBMIT} --rounds 4 --noise-multiplier 4")
    assert "▒" in adserver("budget").stdout
    said = "the planned job, with a noise multiplier of 20, fits"
    assert said in adserver("budget --rounds 1 --noise-multiplier 20").stdout
    # Where none is named, too
    said = "the planned job, with a noise multiplier of 1, does NOT fit"
    assert said in adserver("budget --rounds 1000").stdout


def test_a_picture_of_one_dataset_is_drawn(adserver: Adserver, tmp_path: Path) -> None:
    adserver(f"{SUBMIT} --rounds 4 --noise-multiplier 4")
    adserver("budget --plot budget.png")
    assert (tmp_path / "budget.png").read_bytes().startswith(b"\x89PNG")


def test_a_task_or_dataset_that_is_not_there_is_refused(adserver: Adserver) -> None:
    for line, reason in (
        (f"budget --task {NOWHERE}", JobReason.UNKNOWN_TASK),
        (f"budget --dataset {NOWHERE}", JobReason.UNKNOWN_DATASET),
    ):
        with pytest.raises(JobRefused) as refusal:
            adserver(line)
        assert refusal.value.reason is reason


def test_submitting_what_was_recommended_costs_what_was_predicted(site: Site, adserver: Adserver) -> None:
    planned = json.loads(adserver("job plan --model model.onnx --epsilon 2 --rounds 5 --json").stdout)
    best = planned["recommended"]
    assert best in planned["alternatives"]
    assert best["alone"]["ad_server"] <= 2.0
    adserver(f"{SUBMIT.replace(' --batch-size 20', '')} {best['submit']}")
    held = budget(adserver)
    assert held["ad_server"]["held"] == pytest.approx(best["together"]["ad_server"])
    assert held["colluding"]["held"] == pytest.approx(best["together"]["colluding"])


def test_planning_for_an_epsilon_and_submitting_it_give_the_same_noise(
    site: Site, adserver: Adserver
) -> None:
    """The plan recommends correlated noise, which the submission has to ask for."""
    best = json.loads(
        adserver("job plan --model model.onnx --epsilon 2 --rounds 5 --batch-size 20 --json").stdout
    )["recommended"]
    assert "--noise correlated" in best["submit"]
    line = f"{SUBMIT} --rounds 5 --epsilon 2 --noise correlated --optimizer momentum"
    job_id = bytes.fromhex(adserver(line).stdout.strip())
    planned = site.store.get(job_id).plan.job
    assert isinstance(planned, JobSpec)
    assert planned.noise_multiplier == best["noise_multiplier"]
    assert "▶" in adserver("job plan --model model.onnx --rounds 5 --batch-size 20").stdout


def test_a_job_takes_no_more_than_other_jobs_leave(adserver: Adserver) -> None:
    adserver(f"{SUBMIT} --rounds 4 --epsilon 6")
    with pytest.raises(JobRefused) as refusal:
        adserver(f"{SUBMIT} --rounds 4 --noise-multiplier 0.75")
    assert refusal.value.reason is JobReason.BUDGET_EXHAUSTED
    assert not json.loads(
        adserver("budget --json --batch-size 20 --rounds 4 --noise-multiplier 0.75").stdout
    )[0]["planned"]["fits"]
    with pytest.raises(JobRefused, match=r"epsilon 6 was asked for, but .*, 8 in all leave") as refusal:
        adserver(f"{SUBMIT} --rounds 4 --epsilon 6")
    told = re.search(r"--epsilon [0-9.]+", str(refusal.value))
    assert told is not None
    adserver(f"{SUBMIT} --rounds 4 {told[0]}")
    assert 7.8 < budget(adserver)["ad_server"]["held"] <= 8.0


def test_a_job_until_its_budget_ends_stops_there_and_says_so(site: Site, adserver: Adserver) -> None:
    job_id = bytes.fromhex(
        adserver(f"{SUBMIT} --until-budget --noise-multiplier 4 --epsilon 2").stdout.strip()
    )
    plan = site.store.get(job_id).plan
    assert isinstance(plan, TrainingPlan)
    costs = [
        spent([plan.job.charge(plan.task, rounds)], plan.task.delta).ad_server
        for rounds in (plan.job.rounds, plan.job.rounds + 2)
    ]
    assert costs[0] <= 2.0 < costs[1]
    site.worker().run_one()
    shown = json.loads(adserver("job show --json").stdout)
    assert (shown["state"], shown["reason"], shown["rounds_done"]) == (
        "done",
        "budget_spent",
        plan.job.rounds,
    )
    assert f"{plan.job.rounds} rounds are what the budget held" in shown["cause"]


def test_rounds_and_until_budget_are_one_or_the_other(adserver: Adserver) -> None:
    with pytest.raises(InvalidTask, match=r"at most one of rounds and until_budget \(--rounds, --until"):
        adserver(f"{SUBMIT} --noise-multiplier 4 --rounds 4 --until-budget")
    with pytest.raises(JobRefused) as refusal:
        adserver(f"{SUBMIT} --until-budget --epsilon 2")
    assert refusal.value.reason is JobReason.NOISE_OUT_OF_RANGE


def test_a_plan_says_why_a_model_is_not_exact_and_what_that_costs(
    site: Site, adserver: Adserver, tmp_path: Path
) -> None:
    proto = onnx.ModelProto.FromString(ENCODED_MODEL)
    ends_in = proto.graph.output[0].name
    proto.graph.node.append(onnx.helper.make_node("Erf", [ends_in], ["end"]))
    proto.graph.output[0].name = "end"
    (tmp_path / "general.onnx").write_bytes(proto.SerializeToString())
    line = "job plan --model general.onnx --epsilon 2 --rounds 5 --batch-size 20"
    found = json.loads(adserver(f"{line} --json").stdout)
    exact = json.loads(adserver(f"{line.replace('general', 'model')} --json").stdout)
    assert exact["general_path"] is None
    assert "the operator Erf" in found["general_path"]["reasons"][0]
    independent = (exact["compared"] or {}).get("independent") or exact["recommended"]
    needed = found["recommended"]["noise_multiplier"] / independent["noise_multiplier"]
    assert found["general_path"]["noise_factor"] == pytest.approx(needed, rel=0.02)
    assert needed >= 1  # samples of so few records are public anyway
    said = adserver(line).stdout
    assert "general path" in said
    assert f"submit it with: {found['recommended']['submit']}" in said
    assert found["recommended"]["submit"].endswith("--public-samples")
    asked = json.loads(adserver(f"{line.replace('general', 'model')} --sampling poisson --json").stdout)
    assert asked["recommended"]["submit"].endswith("--sampling poisson")
