"""`adserver job` and `adserver model` from the command line, with a real store and two helpers in memory."""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event

import numpy as np
import onnxruntime
import pytest
import torch
from sqlalchemy import insert
from typer.testing import CliRunner, Result

from adserver.cli.main import app
from adserver.measuring.evaluation_result import EvaluationResult
from adserver.peers import connect
from adserver.records.dataset_state import DatasetState
from adserver.records.job_state import JobState
from adserver.store.queries import QueryStore
from adserver.store.schema import datasets
from adserver.store.tasks import TaskStore
from adserver.training import plain_training
from adserver.training.any_records import TAKES_ONE_RECORD
from adserver.training.inference import predict
from adserver.training.plain_training import RATES
from adserver.training.trainer import Checkpoint
from maskedlark.canonical import encode
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import HelperUnavailable, InvalidModel, InvalidTask, JobReason, JobRefused
from maskedlark.model.dense import dense_network
from maskedlark.model.onnx_file import parse
from maskedlark.releases.job import JobSpec
from tests.adserver.evaluation_helper import MemoryEvaluationHelper
from tests.adserver.job_world import ENCODED_MODEL, MODEL, NUM_FEATURES, RECORDS, Site, eval_set_npz, sealed
from tests.builders import NOW
from tests.torch_models import export

OF = sealed(mechanism="gaussian", expires_at=1 << 39)
Adserver = Callable[..., Result]


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
    (tmp_path / "panel.npz").write_bytes(eval_set_npz(OF))
    yield made
    made.engine.dispose()


@pytest.fixture
def adserver(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adserver:
    monkeypatch.setenv("ADSERVER_DATA", str(site.data_dir))
    monkeypatch.chdir(tmp_path)

    def run(line: str, *, exit_code: int = 0) -> Result:
        result = CliRunner().invoke(app, line.split(), catch_exceptions=False)
        assert result.exit_code == exit_code, result.output
        return result

    return run


SUBMIT = (
    "job submit --model model.onnx --loss binary_cross_entropy_with_logits --rounds 4 --batch-size 20"
    " --learning-rate 0.1 --clip-norm 1 --noise-multiplier 4 --eval-set panel.npz --eval-every 2"
)


def submitted(adserver: Adserver) -> bytes:
    return bytes.fromhex(adserver(SUBMIT).stdout.strip())


def test_a_submitted_job_is_stored_with_its_files(site: Site, adserver: Adserver) -> None:
    job = site.store.get(submitted(adserver))
    assert job.state is JobState.QUEUED
    assert isinstance(job.plan.job, JobSpec)
    assert job.plan.job.noise_multiplier == 4.0
    assert site.folder(job.job_id).model() == ENCODED_MODEL
    assert site.folder(job.job_id).eval_set() == eval_set_npz(OF)


@pytest.mark.parametrize(
    ("one_in", "clip", "is_warned"), [(10, "", True), (3, "", False), (10, " --clip-norm 1", False)]
)
def test_a_clip_that_cuts_what_tells_of_a_rare_label_names_the_remedy(
    one_in: int, clip: str, is_warned: bool, adserver: Adserver, tmp_path: Path
) -> None:
    features = np.zeros((60, OF.of.task.num_features), np.uint8)
    np.savez(tmp_path / "panel.npz", features=features, labels=(np.arange(60) % one_in == 0).astype(np.int64))
    said = adserver(SUBMIT.replace(" --clip-norm 1", clip)).stderr
    assert ("the rarer label is 10% of the evaluation set" in said) is is_warned
    assert ("adserver model calibrate --panel" in said) is is_warned


def test_a_refused_submission_stores_nothing(site: Site, adserver: Adserver) -> None:
    with pytest.raises(JobRefused) as refusal:
        adserver(SUBMIT.replace("--batch-size 20", "--batch-size 4000"))
    assert refusal.value.reason is JobReason.MALFORMED
    assert site.store.all() == ()
    assert not (site.data_dir / "jobs").exists()


def test_a_job_is_followed_to_its_end_from_another_process(site: Site, adserver: Adserver) -> None:
    submitted(adserver)
    worker = site.worker()
    worker.start()
    shown = json.loads(adserver("job watch --json").stdout)
    worker.stop()
    assert (shown["state"], shown["rounds_done"], shown["reason"]) == ("done", 4, None)
    assert 0 < shown["epsilon_spent"] < shown["collusion_epsilon_spent"]
    assert shown["loss"] > 0
    assert 0 <= shown["accuracy"] <= 1


def test_submit_can_wait_for_the_end(site: Site, adserver: Adserver) -> None:
    worker = site.worker()
    worker.start()
    result = adserver(f"{SUBMIT} --wait")
    worker.stop()
    assert "done" in result.stdout
    assert "accuracy" in result.stdout


def test_watching_a_refused_job_exits_with_1_and_says_why(site: Site, adserver: Adserver) -> None:
    submitted(adserver)
    site.helpers[0].failures = [JobRefused(JobReason.BUDGET_EXHAUSTED, "nothing is left")]
    site.worker().run_one()
    result = adserver("job watch", exit_code=1)
    told = " ".join(result.stdout.split())
    assert "nothing is left; resumed, it would stop again: submit another" in told
    assert "job resume" not in result.stdout


def test_a_refused_job_that_may_go_on_says_how(site: Site, adserver: Adserver) -> None:
    submitted(adserver)
    site.helpers[0].failures = [JobRefused(JobReason.UNKNOWN_DATASET, "not yet")]
    site.worker().run_one()
    assert "goes on with this round once the cause is gone" in adserver("job watch", exit_code=1).stdout


def test_watching_shows_that_the_job_waits(site: Site, adserver: Adserver) -> None:
    job_id = submitted(adserver)
    site.helpers[0].failures = [HelperUnavailable("the helper restarts")] * 4
    site.helpers[1].hold = Event()
    site.helpers[1].hold.set()
    worker = site.worker()
    worker.start()
    assert json.loads(adserver("job watch --json").stdout)["state"] == "done"
    worker.stop()
    assert site.store.get(job_id).stop is None


def test_a_cancelled_job_is_over_and_a_refused_one_can_be_resumed(site: Site, adserver: Adserver) -> None:
    job_id = submitted(adserver)
    site.helpers[0].failures = [JobRefused(JobReason.UNKNOWN_DATASET, "not yet")]
    site.worker().run_one()
    assert site.store.get(job_id).state is JobState.REFUSED
    adserver(f"job resume {job_id.hex()[:6]}")
    assert site.store.get(job_id).state is JobState.QUEUED
    adserver("job cancel")
    assert site.store.get(job_id).state is JobState.CANCELLED
    with pytest.raises(JobRefused):
        adserver("job resume")


def test_list_and_show_tell_people_and_programs_the_same(site: Site, adserver: Adserver) -> None:
    job_id = submitted(adserver)
    site.worker().run_one()
    (listed,) = json.loads(adserver("job list --json").stdout)
    assert listed == json.loads(adserver("job show --json").stdout)
    assert listed["job_id"] == job_id.hex()
    assert job_id.hex()[:12] in adserver("job list").stdout
    assert "accuracy" in adserver("job show").stdout
    assert f"loss {listed['loss']:.4f}, calibrated loss {listed['calibrated_loss']:.4f}" in (
        adserver("job show").stdout
    )


def test_a_jobs_name_is_the_ad_servers_alone_and_jobs_are_compared(site: Site, adserver: Adserver) -> None:
    said = adserver(f"{SUBMIT} --name wide-net --note first-try")
    first = bytes.fromhex(said.stdout.strip())
    assert "helpers compute the model exactly" in said.stderr
    second = submitted(adserver)
    for _ in range(2):
        site.worker().run_one()
    job = site.store.get(first)
    assert (job.name, job.note) == ("wide-net", "first-try")
    assert b"wide-net" not in encode(job.plan)  # of which helpers get a part
    for command in ("job list", "job show " + first.hex(), "job show wide", "job compare"):
        assert "wide-net" in adserver(command).stdout
    named, other = json.loads(adserver("job compare --json").stdout)
    assert (named["job"], named["name"], named["note"]) == (first.hex(), "wide-net", "first-try")
    assert (other["job"], other["name"]) == (second.hex(), "")
    history = site.store.history(first)
    losses = {one.rounds_done: one.loss for one in history if one.loss is not None}
    assert named["loss"] == losses[4]
    calibrated = {one.rounds_done: one.calibrated_loss for one in history if one.calibrated_loss is not None}
    assert named["calibrated_loss"] == calibrated[4] < losses[4]
    assert named["best_loss"] == losses[named["best_rounds"]]
    assert named["best_calibrated_loss"] == calibrated[named["best_rounds"]]
    assert named["best_calibrated_loss"] <= 1.01 * min(calibrated[done] for done in calibrated if done)
    assert "best calibrated loss" in adserver("job compare").stdout
    assert site.store.best_evaluated(first) == next(
        one for one in history if one.rounds_done == named["best_rounds"]
    )
    assert 0 < named["epsilon"] < named["collusion_epsilon"]
    (one,) = json.loads(adserver(f"job compare {second.hex()[:12]} --json").stdout)
    assert one == other
    assert "4 of 4 rounds" in adserver("model export named.onnx --job wide-").stdout
    with pytest.raises(InvalidTask, match="name has 101 characters"):
        adserver(f"{SUBMIT} --name {'n' * 101}")


def test_submit_and_export_say_of_a_file_for_one_record_a_run_what_show_says(
    site: Site, adserver: Adserver, tmp_path: Path
) -> None:
    class Joined(torch.nn.Module):
        """One row with a number of its own is put next to the one record."""

        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.last(torch.cat([x[:, :3], torch.ones(1, 1)], 1))
            return found

    for module, is_told in ((Joined(), True), (torch.nn.Linear(4, 1), False)):
        (tmp_path / "one.onnx").write_bytes(export(module, 4, 1, dynamo=False))
        made = adserver(SUBMIT.replace("model.onnx", "one.onnx"))
        site.worker().run_one()
        exported = adserver(f"model export out.onnx --job {made.stdout.strip()}").stdout
        shown = adserver("model show one.onnx").stdout
        assert [TAKES_ONE_RECORD in said for said in (made.stderr, exported, shown)] == [is_told] * 3


def test_an_exported_model_holds_the_trained_weights_and_runs(
    site: Site, adserver: Adserver, tmp_path: Path
) -> None:
    job_id = submitted(adserver)
    with pytest.raises(JobRefused) as refusal:
        adserver("model export out.onnx")
    assert refusal.value.reason is JobReason.WRONG_STATE
    site.worker().run_one()
    said = adserver("model export out.onnx").stdout
    assert "4 of 4 rounds" in said
    calibrate = f"adserver model calibrate calibrated.onnx --job {job_id.hex()[:12]} --panel PANEL.npz"
    assert said.splitlines()[1].startswith("not calibrated: ")
    assert said.endswith(f" run: {calibrate}\n")
    adserver(calibrate.removeprefix("adserver ").replace("PANEL", "panel"))
    exported = (tmp_path / "out.onnx").read_bytes()
    stored = site.folder(job_id).checkpoint()
    assert stored is not None
    trained = Checkpoint.decode(stored).values()
    for value, expected in zip(parse(exported, num_features=4).initial_values, trained, strict=True):
        assert value.tobytes() == expected.tobytes()
    features = np.array([[0, 64, 128, 255]], np.uint8)
    (outputs,) = onnxruntime.InferenceSession(exported).run(
        None, {"features": (features / 256).astype(np.float32)}
    )
    np.testing.assert_allclose(outputs, (features / 256) @ trained[0].T + trained[1], rtol=1e-5)


def test_a_model_is_exported_with_what_it_takes_in_it(site: Site, adserver: Adserver, tmp_path: Path) -> None:
    submitted(adserver)
    site.worker().run_one()
    columns: dict[str, list[str | None]] = {
        **{name: ["0", "5", "9", None] for name in "abc"},
        "word": ["x", "y", "x", None],
    }
    encoder = fit(columns, FitSettings())
    (tmp_path / "encoder.json").write_bytes(encode(encoder))
    assert "bytes over 256" in adserver("model export plain.onnx").stdout
    of_bytes = adserver("model export bytes.onnx --with-bytes --weights best").stdout
    assert "the graph takes bytes" in of_bytes
    assert of_bytes.endswith(" --takes bytes --weights best\n")
    assert "raw columns" in adserver("model export raw.onnx --with-encoder --encoder encoder.json").stdout
    with pytest.raises(InvalidTask, match="names no encoder"):
        adserver("model export raw.onnx --with-encoder")
    with pytest.raises(InvalidTask, match="takes one input a column"):
        adserver("model show raw.onnx")
    features = encoder.features(columns)
    outputs = predict((tmp_path / "plain.onnx").read_bytes(), features)
    feed = {name: np.array([[0.0], [5.0], [9.0], [np.nan]]) for name in "abc"}
    feed["word"] = np.array([["x"], ["y"], ["x"], [""]], object)
    for name, given in (("bytes", {"features": features}), ("raw", feed)):
        (found,) = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx").run(None, given)
        np.testing.assert_allclose(found, outputs, rtol=0, atol=1e-6)


def test_the_exported_models_evaluation_is_the_jobs_last_one(site: Site, adserver: Adserver) -> None:
    submitted(adserver)
    site.worker().run_one()
    adserver("model export out.onnx")
    evaluated = json.loads(
        adserver(
            "model evaluate out.onnx --eval-set panel.npz --loss binary_cross_entropy_with_logits --json"
        ).stdout
    )
    shown = json.loads(adserver("job show --json").stdout)
    assert 0 < evaluated["auc"] < 1
    assert (evaluated["loss"], evaluated["accuracy"], evaluated["auc"], evaluated["examples"]) == (
        shown["loss"],
        shown["accuracy"],
        shown["auc"],
        RECORDS,
    )
    interval = f"(99 %: {shown['auc_low']:.3f} to {shown['auc_high']:.3f})"
    assert f"AUC {shown['auc']:.4f} {interval}" in " ".join(adserver("job show").stdout.split())


def test_a_jobs_latest_weights_are_evaluated_on_the_reports_of_its_dataset(
    site: Site, adserver: Adserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submitted(adserver)
    site.worker().run_one()
    adserver("model export out.onnx")
    helpers = {
        f"127.0.0.1:{role}": MemoryEvaluationHelper(OF.of, role, OF.datasets[role].shares, seed=1)
        for role in (0, 1)
    }
    monkeypatch.setattr(connect, "HelperClient", lambda address, *_, **__: nullcontext(helpers[address]))
    reach = "evaluate --insecure --helper-0 127.0.0.1:0 --helper-1 127.0.0.1:1 --json"
    told = json.loads(adserver(f"{reach} --job {job_id.hex()[:6]} --epsilon 2").stdout)
    assert told["dataset_id"] == OF.datasets[0].dataset_id.hex()
    assert 1.9 < told["epsilon"]["ad_server"] <= 2
    for helper in helpers.values():
        assert helper.models == [(tmp_path / "out.onnx").read_bytes()]
    again = json.loads(adserver(f"{reach} --again {told['query_id'][:8]}").stdout)
    assert again["query_id"] == told["query_id"]
    assert len(QueryStore(site.engine).of_dataset(OF.datasets[0].dataset_id)) == 1
    adserver(f"{reach} --again 00 --job 00", exit_code=2)
    # Without helpers, from the answer that was kept; at this noise 40 records tell nothing
    calibrate = (
        f"model calibrate calibrated.onnx --job {job_id.hex()[:6]} --evaluation {told['query_id'][:8]}"
    )
    with pytest.raises(InvalidTask, match="does not tell how the predictions add up at its noise"):
        adserver(calibrate)
    monkeypatch.setattr(EvaluationResult, "shows_mean", True)
    assert json.loads(adserver(f"{calibrate} --json").stdout)["scale"] > 0
    assert (tmp_path / "calibrated.onnx").exists()


def test_a_model_that_no_helper_evaluates_is_refused_before_its_cost_is_forecast(
    site: Site, adserver: Adserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers = {
        f"127.0.0.1:{role}": MemoryEvaluationHelper(OF.of, role, OF.datasets[role].shares, seed=1)
        for role in (0, 1)
    }
    monkeypatch.setattr(connect, "HelperClient", lambda address, *_, **__: nullcontext(helpers[address]))
    monkeypatch.setattr(
        "adserver.client.client.Client.forecast_evaluation",
        lambda *_, **__: pytest.fail("a forecast was asked for"),
    )
    (tmp_path / "general.onnx").write_bytes(dense_network([NUM_FEATURES, 3, 1], "gelu", seed=1))
    with pytest.raises(
        InvalidModel, match=r"Relu, Elu or SiLU.*: only models with an exact form are evaluated"
    ):
        adserver(
            "evaluate --insecure --helper-0 127.0.0.1:0 --helper-1 127.0.0.1:1 --epsilon 2 "
            "--model general.onnx"
        )
    assert not any(helper.models for helper in helpers.values())


def test_a_created_model_is_what_show_says(adserver: Adserver, tmp_path: Path) -> None:
    adserver("model create --layers 30,50,50,1 --activation relu --seed 0 new.onnx")
    shown = json.loads(adserver("model show new.onnx --num-features 30 --json").stdout)
    assert [tensor["shape"] for tensor in shown["tensors"]] == [[50, 30], [50], [50, 50], [50], [1, 50], [1]]
    assert shown["parameters"] == 30 * 50 + 50 + 50 * 50 + 50 + 50 + 1
    assert "0.weight" in adserver("model show new.onnx --num-features 30").stdout
    assert (shown["path"], shown["why_general"]) == ("exact", [])
    general = adserver(
        "model show new.onnx --num-features 30 --loss binary_cross_entropy"
    ).stdout  # on its logits
    assert "general path" in general
    assert "  binary_cross_entropy without a last Sigmoid: use" in general
    adserver("model create --layers 30,50,50,1 --seed 0 again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "new.onnx").read_bytes()


def test_layers_that_are_no_numbers_are_a_wrong_option(adserver: Adserver) -> None:
    assert "30,50,50,1" in adserver("model create --layers thirty new.onnx", exit_code=2).output


def test_a_plan_is_submitted_as_it_was_planned(adserver: Adserver, site: Site) -> None:
    settings = "--learning-rate 0.3 --momentum 0.8 --schedule step --step-rounds 2 --clip-norm 0.5"
    plan = json.loads(
        adserver(f"job plan --model model.onnx --rounds 4 --batch-size 10 {settings} --json").stdout
    )
    best = plan["recommended"]
    assert best["weight_noise"] > 0
    assert best["core_seconds"] > 0
    submit = f"job submit --model model.onnx --loss binary_cross_entropy_with_logits {best['submit']}"
    stored = site.store.get(bytes.fromhex(adserver(submit).stdout.strip())).plan
    assert isinstance(stored.job, JobSpec)
    assert stored.job.noise_multiplier == best["noise_multiplier"]
    assert (stored.job.rounds, stored.job.clip_norm, stored.job.carried) == (4, 0.5, best["carried"])
    assert (stored.optimizer.learning_rate, stored.optimizer.momentum) == (0.3, 0.8)
    assert (stored.schedule.kind, stored.schedule.step_rounds) == ("step", 2)


def test_a_plan_of_correlated_noise_and_a_part_is_submitted_with_a_rate_in_its_place(
    adserver: Adserver, site: Site
) -> None:
    dataset, part = OF.datasets[0].dataset_id.hex(), "--train * --freeze *bias* --any-columns"
    asked = f"job plan --model model.onnx --rounds 4 --batch-size 10 --noise correlated {part}"
    best = json.loads(adserver(f"{asked} --dataset {dataset} --json").stdout)["recommended"]
    part = f"--train '*' --freeze '*bias*' --any-columns --dataset {dataset}"
    assert best["submit"].endswith(part)
    assert f"{part}\n" in adserver(f"{asked} --dataset {dataset}").stdout
    options = shlex.split(best["submit"].replace("--learning-rate RATE", "--learning-rate 0.3"))
    submit = "job submit --model model.onnx --loss binary_cross_entropy_with_logits"
    job_id = adserver(" ".join([submit, *options])).stdout.strip()
    stored = site.store.get(bytes.fromhex(job_id)).plan
    assert isinstance(stored.job, JobSpec)
    assert stored.job.carried == best["carried"]
    assert stored.job.trained == (MODEL.parameters[0].name,)
    assert (stored.optimizer.learning_rate, stored.job.noise_multiplier) == (0.3, best["noise_multiplier"])


@pytest.mark.parametrize("fixed", ["", " --rounds 7"])
def test_the_marked_job_is_the_one_that_is_submitted_without_a_plan(
    adserver: Adserver, site: Site, fixed: str
) -> None:
    asked = f"--model model.onnx --loss binary_cross_entropy_with_logits --epsilon 1{fixed}"
    plan = json.loads(adserver(f"job plan {asked} --json").stdout)
    assert (plan["recommended"]["steps_worth"], plan["refusal"]) == (None, "")
    stored = site.store.get(bytes.fromhex(adserver(f"job submit {asked}").stdout.strip())).plan
    assert isinstance(stored.job, JobSpec)
    job, best = stored.job, plan["recommended"]
    assert (job.rounds, job.noise_multiplier) == (best["rounds"], best["noise_multiplier"])
    assert best["batch_size"] == stored.dataset_size == job.sampling_rate * stored.dataset_size


def test_a_plan_names_a_worth_only_where_a_gradient_norm_is_expected(adserver: Adserver) -> None:
    wish = "job plan --parameters 50 --reports 5000 --epsilon 2"
    unknown, expected = adserver(wish).stdout, adserver(f"{wish} --rounds 9 --gradient-norm 0.2").stdout
    assert "least ratio" in unknown
    without, head = (next(one for one in said.splitlines() if "limit" in one) for said in (unknown, expected))
    assert "worth" not in without
    assert "least ratio" not in expected
    assert "worth" in head
    assert "begins at 0.1 and follows the gradients" in expected
    assert "--rounds 120" in unknown
    of_a_bound = adserver(f"{wish} --rounds 9 --gradient-norm 0.2 --clip-norm 0.5").stdout
    assert "follows the gradients" not in of_a_bound
    assert "--rounds 4\n" in adserver(f"{wish} --max-epochs 4").stdout


def test_a_plan_that_names_nothing_has_the_rounds_of_the_rule_for_its_model(
    adserver: Adserver, tmp_path: Path
) -> None:
    for name, widths in (("linear", [NUM_FEATURES, 1]), ("hidden", [NUM_FEATURES, 3, 1])):
        (tmp_path / f"{name}.onnx").write_bytes(dense_network(widths, "relu", seed=1))

    def rounds(model: str, options: str) -> int:
        asked = f"job plan --model {tmp_path / model}.onnx --reports 30000 --json {options}"
        return int(json.loads(adserver(asked).stdout)["recommended"]["rounds"])

    assert rounds("hidden", "--epsilon 2") == rounds("hidden", "") == 300
    assert rounds("linear", "--epsilon 2") == rounds("hidden", "--epsilon 0.5") == 120
    assert rounds("hidden", "--epsilon 2 --jobs 20") == rounds("hidden", "--epsilon 2 --train *") == 120
    for unlike in ("--momentum 0.5", "--schedule constant", "--noise correlated"):
        assert rounds("hidden", f"--epsilon 2 {unlike}") == 120
    assert rounds("hidden", "--epsilon 2 --max-epochs 200") == 200


def test_a_plan_says_in_words_that_its_epsilon_is_refused(adserver: Adserver) -> None:
    asked = "--model model.onnx --loss binary_cross_entropy_with_logits --rounds 5"
    adserver(f"job submit {asked} --epsilon 2")
    left = json.loads(adserver("budget --json").stdout)[0]["next_epsilon"]
    more, shown = 1.03 * left, f"leave this job {left:g}: ask for epsilon {left:g} "
    assert shown in adserver(f"job plan {asked} --epsilon {more}").stdout
    with pytest.raises(JobRefused, match=shown):
        adserver(f"job submit {asked} --epsilon {more}")
    assert "refused" not in adserver(f"job plan {asked} --epsilon {left}").stdout
    adserver(f"job submit {asked} --epsilon {left}")


def test_a_budget_is_divided_before_anything_is_collected(adserver: Adserver) -> None:
    wish = "job plan --parameters 50 --reports 5000 --epsilon 2 --jobs 4 --tests 9 --rounds 20"
    plan = json.loads(adserver(f"{wish} --json").stdout)
    assert (plan["dataset_size"], plan["jobs"], plan["tests"]["count"]) == (5_000, 4, 9)
    best = plan["recommended"]
    assert best["alone"]["ad_server"] > 2 / 4
    assert 1.9 < best["planned"]["ad_server"] <= 2
    shown = adserver(wish).stdout
    assert f"adserver evaluate --epsilon {plan['tests']['epsilon']:g}" in shown
    assert "all 4 jobs and 9 evaluations cost" in shown
    assert "submit each with: --rounds 20" in shown
    adserver("job plan --reports 5000 --rounds 20", exit_code=2)


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ("--parameters 50 --reports 5000 --dataset ab", "one of dataset and reports"),
        ("--parameters 50 --reports 5000 --tests 3 --test-share 1", "test_share must be between 0 and 1"),
        ("--parameters 50 --rounds 20 --clip-norm 2", "at most the task's"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(adserver: Adserver, wish: str, why: str) -> None:
    with pytest.raises(InvalidTask, match=why):
        adserver(f"job plan {wish}")


def test_a_job_without_a_rate_rounds_or_optimizer_has_those_of_the_rule(
    adserver: Adserver, site: Site
) -> None:
    job = "job submit --model model.onnx --loss binary_cross_entropy_with_logits --epsilon 2"
    found = json.loads(adserver(f"{job} --json").stdout)
    assert (found["optimizer"], found["schedule"], found["rounds"]) == ("momentum", "cosine", 120)
    assert found["learning_rate"] == 0.1
    assert "learning rate 0.1, by the rule for 40 reports" in adserver(f"{job} --epsilon 0.1").stderr
    with pytest.raises(InvalidTask, match="at most one of rounds and until_budget"):
        adserver(f"{job} --rounds 3 --until-budget")
    with pytest.raises(InvalidTask, match="give a rate"):
        adserver(f"{job} --optimizer adam")
    assert len(site.store.all()) == 2


def test_a_rehearsal_trains_on_examples_and_spends_nothing(
    adserver: Adserver, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_training, "_LEAST_STEPS", 10)
    job = "--model model.onnx --loss binary_cross_entropy_with_logits"
    job += " --learning-rate 0.5 --rounds 2 --batch-size 20"
    wish = f"--examples panel.npz --reports {RECORDS} --epsilon 1 --also-rate 0.1 --seeds 2 --workers 1"
    found = json.loads(adserver(f"job rehearse {job} {wish} --json").stdout)
    assert found["metric"] == "roc_auc"
    *of_model, default = found["settings"]
    assert [one["learning_rate"] for one in of_model] == [0.5, 0.1] * 2 + [*RATES]
    assert (default["name"], default["is_default"]) == ("epsilon 1, default network", True)
    assert default["costs"] == found["settings"][0]["costs"]
    assert [one["name"] for one in found["settings"][:6:2]] == ["epsilon 1", "no noise", "examples alone"]
    assert found["settings"][0]["costs"]["ad_server"] <= 1.0
    assert site.store.all() == ()
    shown = adserver(f"job rehearse {job} {wish} --plot picture.png").stdout
    assert "submit with --epsilon 1; the rule gives the learning rate 0.1" in shown
    assert "=: one that cannot be told apart" in shown
    job = "--model model.onnx --loss binary_cross_entropy_with_logits --rounds 2"
    wish = f"{wish.replace('--also-rate 0.1', '')} --without-default"
    by_rule = json.loads(adserver(f"job rehearse {job} {wish} --json").stdout)
    assert not any(one["is_default"] for one in by_rule["settings"])
    assert [one["learning_rate"] for one in by_rule["settings"][:3]] == [0.033, 0.1, 0.3]
    assert by_rule["settings"][0]["rule_rate"] == 0.1
    assert Path("picture.png").stat().st_size > 5_000
