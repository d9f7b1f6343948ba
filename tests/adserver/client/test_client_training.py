"""`Client` does what the commands do: it makes tasks, trains, watches, shows figures and exports."""

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import insert, update

from adserver.client import Client, local_measuring, training
from adserver.client.job import Job
from adserver.client.local import LocalAdServer
from adserver.client.remote import RemoteAdServer
from adserver.client.tasks import read_encoder_of, read_measurement_of
from adserver.client.training import _submission
from adserver.collecting.task_settings import NO_LABELS
from adserver.messages.job import calibrate_command
from adserver.peers import connect
from adserver.records.dataset_state import DatasetState
from adserver.records.job_record import JobRecord
from adserver.records.job_state import JobState
from adserver.records.optimizer_kinds import ScheduleKind
from adserver.records.submissions import Submission
from adserver.records.training_plan import Schedule, TrainingPlan
from adserver.store.database import open_store
from adserver.store.schema import datasets, jobs
from adserver.store.tasks import TaskStore
from adserver.training import rehearsal
from adserver.training.as_onnx import as_onnx
from adserver.training.default_network import choose_default
from adserver.training.eval_set import read_eval_set
from adserver.training.inference import evaluate, predict
from adserver.training.pipeline import LOSS_IS, from_bytes, notes_of
from maskedlark.canonical import encode
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import InvalidModel, InvalidTask, JobReason, JobRefused, MaskedLarkError
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.reports.measurement import Key, Measurement
from tests.adserver.fake_helper import FakeHelper, serving
from tests.adserver.job_world import NUM_FEATURES, RECORDS, Sealed, Site, eval_set_npz, sealed
from tests.builders import NOW

OF = sealed(expires_at=1 << 39)
NOISE = {"mechanism": "gaussian", "epsilon": 16.0, "collusion_epsilon": 400.0, "delta": 1e-5}
LOGITS = "binary_cross_entropy_with_logits"
NOISED = sealed(expires_at=1 << 39, **NOISE)
TASK: dict[str, Any] = {
    "name": "clicks",
    "origin": "https://ads.example",
    "min_batch_size": 2,
    "clip_norm": 1.0,
    "epsilon": 2.0,
}


def add_dataset(site: Site, of: Sealed, encoder: Encoder | None = None) -> None:
    """Store a task and its committed dataset."""
    TaskStore(site.engine).add(of.of.bundle, created_at=NOW, encoder=encoder)
    row = {
        "handle": bytes(16),
        "task_id": of.of.task.task_id,
        "state": DatasetState.COMMITTED,
        "created_at": NOW,
        "received": RECORDS,
        "size": RECORDS,
        "dataset_id": of.datasets[0].dataset_id,
    }
    with site.engine.begin() as connection:
        connection.execute(insert(datasets).values(row))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A committed dataset at an ad server whose helpers are in memory."""
    one = Site(tmp_path / "adserver", OF)
    add_dataset(one, OF)
    monkeypatch.setattr(
        connect, "HelperClient", lambda address, *_, **__: nullcontext(one.helpers[int(address[-1])])
    )
    yield one
    one.engine.dispose()


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with Client(data=site.data_dir, helpers=("127.0.0.1:0", "127.0.0.1:1"), insecure=True) as one:
        yield one


def module() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Linear(4, 1)


@cache
def exported() -> bytes:
    """The module as a file, made once: torch's exporter takes longer than what most tests claim."""
    return as_onnx(module(), OF.of.task.num_features)


def settings(**changes: Any) -> dict[str, Any]:
    return {
        "loss": "binary_cross_entropy_with_logits",
        "learning_rate": 0.5,
        "rounds": 4,
        "wait": False,
        **changes,
    }


def test_a_torch_module_is_trained_watched_and_exported(site: Site, client: Client, tmp_path: Path) -> None:
    (tmp_path / "panel.npz").write_bytes(eval_set_npz(OF))
    job = client.train(module(), eval_set=tmp_path / "panel.npz", **settings())
    assert (job.state, job.is_over) == (JobState.QUEUED, False)
    site.worker().run_one()
    assert job.wait(progress=False).state is JobState.DONE
    assert job.is_over
    assert [one.rounds_done for one in job.figures()] == [0, 1, 2, 3, 4]
    picture = job.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes() == picture._repr_png_() == job.plot().png
    assert repr(picture) == "Picture()"
    with pytest.raises(InvalidTask, match=r"curves are written to a file that ends in \.png"):
        job.plot(tmp_path / "curves.svg")
    table = job.to_pandas()
    assert list(table["rounds_done"]) == [0, 1, 2, 3, 4]
    assert table["loss"].iloc[-1] < table["loss"].iloc[0]
    assert job.summary()["auc"] == table["auc"].iloc[-1] > 0.5
    panel = read_eval_set(eval_set_npz(OF))
    tested = evaluate(job.export(), panel.features, panel.labels, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
    interval = (job.summary()["auc_low"], job.summary()["auc_high"])
    assert interval == tested.auc_interval == (table["auc_low"].iloc[-1], table["auc_high"].iloc[-1])
    assert job.summary()["rounds_done"] == 4
    [compared] = compared_jobs = client.compare_jobs()
    plan = job.record.plan
    assert isinstance(plan, TrainingPlan)
    spec = plan.job
    assert (compared["task_id"], compared["dataset_id"]) == (spec.task_id.hex(), spec.dataset_id.hex())
    assert (compared["task"], compared["model"]) == (plan.task.name, spec.model_digest.hex())
    assert re.search(r"^rounds +4$", repr(compared_jobs), re.MULTILINE)
    assert "<td>rounds</td><td>4</td>" in compared_jobs._repr_html_()
    assert json.loads(json.dumps(compared_jobs)) == [compared]
    calibrated = table["calibrated_loss"]
    assert job.summary()["calibrated_loss"] == compared["calibrated_loss"] == calibrated.iloc[-1]
    assert compared["best_calibrated_loss"] <= 1.01 * calibrated.iloc[1:].min()
    assert job.export(weights="best") != b""
    for name, choice in (("weights", "latest or best"), ("takes", "scaled or bytes or columns")):
        with pytest.raises(InvalidTask, match=f"{name} must be {choice}, not 'none'"):
            job.export(**{name: "none"})
    exported = job.export(tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == exported
    features = np.array([[0, 64, 128, 255]], np.uint8)
    assert predict(exported, features).shape == (1, 1)
    assert client.job().job_id == client.jobs()[0].job_id == job.job_id


def test_a_job_can_be_cancelled_and_refuses_to_export_before_its_first_round(client: Client) -> None:
    job = client.train(exported(), **settings())
    with pytest.raises(JobRefused, match="no model to export"):
        job.export()
    job.cancel()
    assert job.state is JobState.CANCELLED
    with pytest.raises(JobRefused):
        job.resume()


def test_a_job_that_is_refused_is_no_job_that_was_trained(site: Site, client: Client) -> None:
    job = client.train(exported(), **settings())
    site.helpers[1].failures = [JobRefused(JobReason.TOO_LARGE, "its operator's log says why")]
    site.worker().run_one()
    with pytest.raises(JobRefused, match=f"{job.job_id.hex()} is refused after 0 of 4.*log says why") as told:
        job.wait(progress=False)
    assert told.value.reason is JobReason.WRONG_STATE
    assert client.job(job.job_id.hex()).state is JobState.REFUSED


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The models that are to be evaluated, where each evaluation is then refused."""
    models: list[bytes] = []

    def plan(model: bytes, **_: Any) -> None:
        models.append(model)
        raise InvalidTask("enough")

    monkeypatch.setattr(local_measuring, "plan_evaluation", plan)
    return models


def test_a_module_is_evaluated_without_what_torch_notes_of_its_authors_code(
    client: Client, sent: list[bytes]
) -> None:
    given = exported()
    with pytest.raises(InvalidTask, match="enough"):
        client.evaluate(given)
    assert b"stack_trace" in given
    assert b"stack_trace" not in sent[0]


def test_an_export_over_bytes_or_columns_is_evaluated_as_the_model_behind_it_and_not_trained(
    client: Client, sent: list[bytes]
) -> None:
    features = OF.of.task.num_features
    given = exported()
    with pytest.raises(InvalidTask, match="enough"):
        client.evaluate(from_bytes(given, features))
    assert parse(sent[0], num_features=features).digest == parse(given, num_features=features).digest
    with pytest.raises(InvalidTask, match=r"export` writes without .* `export` without `takes`"):
        client.train(from_bytes(given, features), **settings())


def test_an_evaluation_that_would_read_a_chance_as_a_logit_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[bytes] = []
    monkeypatch.setattr(local_measuring, "plan_evaluation", lambda model, **_: planned.append(model))
    features = OF.of.task.num_features
    layers = (torch.nn.Linear(features, 1), torch.nn.Sigmoid(), torch.nn.Hardtanh(0.01, 0.99))
    with pytest.raises(InvalidModel, match="may be a chance, but its last operator is Clip"):
        client.evaluate(as_onnx(torch.nn.Sequential(*layers), features))
    assert len(planned) == 1


def test_a_job_is_evaluated_as_it_was_returned_or_by_its_id(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.train(exported(), **settings())
    asked: list[str] = []
    monkeypatch.setattr(
        type(client.server),
        "evaluate",
        lambda _, model, *, job, **__: asked.append(job),
    )
    client.evaluate(job=job)
    client.evaluate(job=job.job_id.hex()[:12])
    assert asked == [job.job_id.hex(), job.job_id.hex()[:12]]


def test_a_dataset_is_named_as_seal_returns_it_or_by_its_id(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = client.dataset()
    asked: list[str] = []
    for operation in ("submit", "plan", "evaluate", "aggregate", "budgets"):

        def record(_: object, request: Any = None, **named: Any) -> None:
            asked.append(named.get("dataset") or request.dataset)
            raise StopIteration

        monkeypatch.setattr(type(client.server), operation, record)
    calls: list[Callable[..., object]] = [
        partial(client.train, exported(), **settings()),
        partial(client.plan, exported(), rounds=4),
        partial(client.evaluate, exported()),
        partial(client.aggregate, "count"),
        client.budgets,
    ]
    for given in (dataset, dataset.dataset_id.hex() if dataset.dataset_id else ""):
        for call in calls:
            with pytest.raises(StopIteration):
                call(dataset=given)
    assert asked == [OF.datasets[0].dataset_id.hex()] * 10
    with pytest.raises(InvalidTask, match="not committed yet"):
        client.budgets(dataset=replace(dataset, dataset_id=None))


def test_a_loss_of_another_output_is_refused_before_anything_is_stored(
    client: Client, tmp_path: Path
) -> None:
    np.savez(tmp_path / "panel.npz", features=np.eye(4, dtype=np.uint8), labels=np.arange(4) % 2)
    squashed = torch.nn.Sequential(module(), torch.nn.Sigmoid())
    for model, loss, why in (
        (squashed, "binary_cross_entropy_with_logits", "ends with Sigmoid, which"),
        (exported(), "binary_cross_entropy", "use binary_cross_entropy_with_logits on logits"),
    ):
        for eval_set in (None, tmp_path / "panel.npz"):
            with pytest.raises(InvalidModel, match=why):
                client.train(model, **settings(loss=loss, rounds=1, eval_set=eval_set))
    assert client.jobs() == []
    client.train(squashed, **settings(loss="binary_cross_entropy", rounds=1))


@pytest.mark.parametrize("loss", ["mse", "poisson"])
def test_a_loss_of_numbers_for_two_classes_is_warned_of(
    client: Client, capsys: pytest.CaptureFixture[str], loss: str
) -> None:
    client.train(exported(), progress=True, **settings(loss=loss, rounds=1))
    assert f"two classes, and {loss} makes the output a number" in capsys.readouterr().err


def test_a_panel_that_is_not_there_is_named_with_its_setting(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match=r"eval_set is nope\.npz: there is no such file"):
        client.train(object(), eval_set="nope.npz", **settings())
    with pytest.raises(InvalidTask, match=r"examples is .*nope\.npz: there is no such file"):
        client.rehearse(object(), tmp_path / "nope.npz", loss="mse")


def test_a_schedule_is_named_as_on_the_command_line(site: Site, client: Client) -> None:
    job = client.train(exported(), schedule="cosine", **settings())
    site.worker().run_one()
    rates = job.to_pandas()["learning_rate"].dropna()
    assert rates.iloc[-1] < rates.iloc[0]
    for name, said in (("cosinus", "schedule must be constant or cosine or step"), ("", "schedule must be")):
        with pytest.raises(InvalidTask, match=said):
            client.train(exported(), schedule=name, **settings())


def test_what_is_wrong_with_a_model_is_said_before_anything_is_stored(client: Client) -> None:
    with pytest.raises(InvalidModel):
        client.train(torch.nn.Linear(5, 1), **settings())
    with pytest.raises(InvalidModel, match="expected an ONNX file"):
        client.train(3, **settings())
    with pytest.raises(JobRefused, match="no noise"):
        client.train(exported(), epsilon=1.0, **settings())
    assert client.jobs() == []


def test_columns_need_the_encoder_of_a_task_that_names_none(
    site: Site, client: Client, tmp_path: Path
) -> None:
    job = client.train(exported(), **settings())
    site.worker().run_one()
    with pytest.raises(InvalidTask, match="names no encoder"):
        job.export(takes="columns")
    encoder = fit({name: ["1", "2"] for name in "abcd"}, FitSettings())
    (tmp_path / "encoder.json").write_bytes(encode(encoder))
    assert job.export(takes="columns", encoder=encoder) == job.export(
        takes="columns", encoder=tmp_path / "encoder.json"
    )


def test_a_task_is_made_with_the_defaults_of_the_command_and_its_encoder(tmp_path: Path) -> None:
    encoder = fit({"a": ["1", "2"], "b": ["x", "y"], "y": ["no", "yes"]}, FitSettings(label="y"))
    measured = {"min_cell_count": 2, "keys": [{"name": "k", "categories": ["a", "b"]}]}
    with (
        serving(FakeHelper(role=0), FakeHelper(role=1)) as (first, second),
        Client.of(LocalAdServer.over(open_store(tmp_path, None), (first, second), data=tmp_path)) as client,
    ):
        made = client.create_task(encoder=encoder, measurement=measured, mechanism="laplace", **TASK)
        task = made.bundle.task
        assert (task.num_features, task.labels.size, task.encoder) == (2, 2, encoder.digest)
        assert (task.norm, task.collusion_epsilon, task.proof) == ("l1", 4.0, True)
        assert "no default label" in repr(made)
        for name in ("classes", "default_label"):
            twice: dict[str, Any] = {**TASK, "labels": task.labels, name: 1}
            with pytest.raises(InvalidTask, match="leave out classes and default_label"):
                client.create_task(encoder=encoder, **twice)
        with pytest.raises(InvalidTask, match=r"^default_label is 'maybe': expected 0 \(no\), 1 \(yes\)"):
            client.create_task(encoder=encoder, default_label="maybe", **TASK)
        with pytest.raises(InvalidTask, match="labels are 2 classes: leave out classes, or give the same"):
            client.create_task(encoder=encoder, classes=3, **TASK)
        with pytest.raises(InvalidTask, match=r"collusion_epsilon is 0\.5, below epsilon, 1"):
            client.create_task(encoder=encoder, **{**TASK, "epsilon": 1.0, "collusion_epsilon": 0.5})
        assert task.measurement is not None
        assert task.measurement.keys[0].size == 2
        assert client.tasks() == [made]
        with pytest.raises(JobRefused, match="report"):
            client.seal(progress=False)
        with pytest.raises(InvalidTask, match="num-features"):
            client.create_task(classes=2, **TASK)
        unlabelled = fit({"a": ["1", "2"], "b": ["x", "y"]}, FitSettings())
        task = client.create_task(encoder=unlabelled, measurement=measured, **TASK).bundle.task
        assert (task.num_features, task.labels, task.num_decoys) == (2, NO_LABELS, 1)
        before = client.tasks()
        with pytest.raises(InvalidTask, match="the encoder was fitted without a label"):
            client.create_task(encoder=unlabelled, **TASK)
        assert client.tasks() == before
        with pytest.warns(UserWarning, match="only pages that give labels as numbers can report"):
            paged = client.create_task(encoder=unlabelled, classes=3, **TASK)
        assert paged.bundle.task.labels.size == 3


def test_a_client_finds_its_ad_server_as_commands_do(
    site: Site, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADSERVER_DATA", str(site.data_dir))
    monkeypatch.setenv("ADSERVER_HELPER_0", "127.0.0.1:0")
    monkeypatch.setenv("ADSERVER_HELPER_1", "127.0.0.1:1")
    monkeypatch.setenv("ADSERVER_INSECURE", "1")
    with Client.from_environment() as found:
        assert found.tasks() == client.tasks()
    monkeypatch.delenv("ADSERVER_HELPER_1")
    with pytest.raises(InvalidTask, match="ADSERVER_HELPER_1 is not set"):
        Client.from_environment()


@pytest.mark.parametrize(
    ("variable", "insecure"),
    [("1", True), ("True", True), ("on", True), ("0", False), ("off", False), ("no", False)],
)
def test_a_client_speaks_plaintext_only_where_commands_do(
    monkeypatch: pytest.MonkeyPatch, variable: str, insecure: bool
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(Client, "__init__", lambda _self, **settings: made.append(settings["insecure"]))
    for name, value in (("DATA", "play"), ("HELPER_0", "a:1"), ("HELPER_1", "a:2"), ("INSECURE", variable)):
        monkeypatch.setenv(f"ADSERVER_{name}", value)
    Client.from_environment()
    assert made == [insecure]


def test_jobs_datasets_and_tasks_show_themselves(client: Client) -> None:
    job = client.train(exported(), **{**settings(), "wait": False})
    assert repr(job) == f"Job({job.job_id.hex()!r}, queued, {job.record.progress}, no noise: no privacy)"
    wide = client.train(exported(), **{**settings(), "wait": False}, name="wide")
    assert repr(wide).startswith(f"Job({wide.job_id.hex()!r}, 'wide', queued, 0 of")
    away = Job(job_id=job.job_id, at=RemoteAdServer(url="http://127.0.0.1:9", token=""))
    assert repr(away) == f"Job({job.job_id.hex()!r})"
    assert "<td>state</td><td>queued</td>" in job._repr_html_()
    assert f"<td>received</td><td>{RECORDS}</td>" in client.dataset()._repr_html_()
    # By ids that every call and command takes
    for one, named in ((client.dataset(), client.dataset), (client.task(), client.task)):
        assert named(re.findall("[0-9a-f]{12}", repr(one))[0]) == one
    assert f"<td>epsilon</td><td>{client.task().bundle.task.epsilon:g}</td>" in client.task()._repr_html_()


def test_names_files_and_values_are_taken_as_people_write_them(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    class Server:
        def aggregate(self, **given: Any) -> SimpleNamespace:
            asked.append(given)
            return SimpleNamespace(query_id="00")

        def dataset(self, _dataset: str) -> None:
            raise JobRefused(JobReason.UNKNOWN_DATASET, "a query without a forecast is asked all the same")

        def queries(self, latest: int) -> tuple[()]:
            return ()

    client = Client.of(Server())  # type: ignore[arg-type]  # the operations that are called
    for group_by in ("campaign", ["campaign"], ("campaign",)):
        client.aggregate("count", group_by=group_by, histograms="paid", where={"device": "phone"})
    assert asked[0] == asked[1] == asked[2]
    assert (asked[0]["group_by"], asked[0]["histograms"]) == (["campaign"], ["paid"])
    for where in ("device=phone", ["device=phone"], {"device": ["phone", "tablet"]}):
        with pytest.raises(InvalidTask, match="expected one value for each key"):
            client.aggregate("count", where=where)  # type: ignore[arg-type]
    assert len(asked) == 3

    encoder = fit({"a": ["1", "2"], "y": ["no", "yes"]}, FitSettings(label="y"))
    (tmp_path / "encoder.json").write_bytes(encode(encoder))
    for given in (
        encoder,
        tmp_path / "encoder.json",
        str(tmp_path / "encoder.json"),
        json.loads(encode(encoder)),
    ):
        assert read_encoder_of(given) == encoder
    settings = {"min_cell_count": 2, "keys": [{"name": "k", "categories": ["a", "b"]}]}
    (tmp_path / "measurement.json").write_text(json.dumps(settings))
    measurement = read_measurement_of(settings)
    assert measurement is not None
    for said in (measurement, tmp_path / "measurement.json", str(tmp_path / "measurement.json")):
        assert read_measurement_of(said) == measurement
    taken = Measurement(min_cell_count=2, keys=(Key(name="k", size=1, categories=("(all)",)),))
    with pytest.raises(InvalidTask, match=r"may not have the category '\(all\)'"):
        read_measurement_of(taken)
    for read in (read_encoder_of, read_measurement_of):
        with pytest.raises(InvalidTask, match="cannot read the"):
            read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("given", "tried"),
    [({}, (0.5, 1.0, 3.0)), ({"epsilon": 2.0}, (2.0,)), ({"epsilon": 2.0, "epsilons": [1, 4]}, (1, 4))],
)
def test_a_rehearsal_is_at_the_epsilon_of_the_job_unless_others_are_named(
    given: dict[str, Any],
    tried: tuple[float, ...],
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wishes: list[rehearsal.Wish] = []
    monkeypatch.setattr(rehearsal, "rehearse", lambda *given, encoder: wishes.append(given[3]))
    (tmp_path / "panel.npz").write_bytes(eval_set_npz(OF))
    job = {name: value for name, value in settings().items() if name != "wait"}
    client.rehearse(exported(), tmp_path / "panel.npz", **job, **given)
    assert wishes[0].epsilons == tried


def test_a_job_is_rehearsed_by_the_settings_of_train_over_the_sealed_dataset(
    client: Client, tmp_path: Path
) -> None:
    panel = tmp_path / "panel.npz"
    panel.write_bytes(eval_set_npz(OF))
    how: dict[str, Any] = {"epsilons": [1.0], "seeds": 1}
    job = {name: value for name, value in settings(rounds=2, batch_size=20.0).items() if name != "wait"}
    found = client.rehearse(exported(), panel, **how, **job)
    assert {one.name for one in found.settings} == {"no noise", "examples alone"}  # the task has no noise
    planned = client.rehearse(exported(), panel, reports=RECORDS, task=OF.of.task.task_id.hex(), **how, **job)
    assert planned.settings == found.settings
    assert client.jobs() == []
    asked = _submission(loss="mse", learning_rate=0.1, rounds=1)
    submission = replace(asked, model=exported())
    with pytest.raises(InvalidTask, match="leave out loss"):
        client.rehearse(submission, panel, loss="mse")


def test_several_rates_are_named_as_learning_rates(client: Client, tmp_path: Path) -> None:
    for given in ([0.3, 1.0], (0.3,), "0.3"):
        with pytest.raises(InvalidTask, match=r"learning_rate is .*give those to compare as learning_rates="):
            client.rehearse(exported(), tmp_path / "none.npz", loss="mse", learning_rate=given)


def test_a_job_is_trained_by_its_model_loss_and_epsilon_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = sealed(mechanism="gaussian", expires_at=1 << 39)
    add_dataset(one := Site(tmp_path / "noisy", of), of)
    job: dict[str, Any] = {"loss": "binary_cross_entropy_with_logits", "wait": False}
    with Client.of(LocalAdServer(data=one.data_dir)) as noisy:
        made = noisy.train(exported(), epsilon=2.0, **job)
        said = capsys.readouterr().err
        plan = noisy.server.job(made.job_id.hex()).plan
        assert isinstance(plan, TrainingPlan)
        assert (plan.optimizer.kind, plan.schedule.kind) == ("momentum", "cosine")
        assert (plan.optimizer.learning_rate, plan.job.rounds) == (0.1, 120)
        assert "learning rate 0.1, by the rule for 40 reports and 5 parameters, with momentum" in said
        noisy.train(exported(), epsilon=0.5, learning_rate=0.1, **job)
        assert "learning rate 0.1, as named, with momentum and a cosine schedule" in capsys.readouterr().err
        with pytest.raises(InvalidTask, match="give a rate"):
            noisy.train(exported(), epsilon=0.5, optimizer="adam", **job)
        with pytest.raises(JobRefused, match="until its budget is spent requires a noise multiplier"):
            noisy.train(exported(), epsilon=0.5, until_budget=True, **job)
        with pytest.raises(JobRefused, match=r"epsilon 8 was asked for, but .*, 8 in all leave"):
            noisy.train(exported(), epsilon=8.0, **job)
        assert len(noisy.jobs()) == 2
        for ends in (False, True):
            made = noisy.train(exported(), noise_multiplier=60.0, until_budget=ends, **job)
            plan = noisy.server.job(made.job_id.hex()).plan
            assert isinstance(plan, TrainingPlan)
            assert (plan.is_until_budget, plan.job.rounds == 120) == (ends, not ends)
    one.engine.dispose()


class BCEWithLogitsLoss:
    """Called as torch's is."""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"epsilon": "3"}, "epsilon is '3': expected one number"),
        ({"learning_rate": "0.5"}, "learning_rate is '0.5': expected one number"),
        ({"optimizer": "adamw"}, "optimizer must be sgd or .*, not 'adamw'"),
        ({"optimizer": object()}, "optimizer must be sgd or .*, not an object of object: its rate is"),
        ({"optimizer": "adamw", "learning_rate": 0.1}, "optimizer must be sgd or .*, not 'adamw'"),
        ({"loss": BCEWithLogitsLoss()}, "loss is of type BCEWithLogitsLoss: expected a name"),
    ],
)
def test_a_setting_of_another_kind_is_named(client: Client, given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidTask, match=why):
        client.train(exported(), **{"loss": "mse", "epsilon": 1.0, **given})
    assert not client.jobs()


class LookedUp(torch.nn.Module):
    """The first feature picks a row of a table."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table, self.last = torch.nn.Embedding(rows, 2), torch.nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(
            torch.cat([self.table((x[:, 0] * 256).long()), x[:, [1, 2, 3]]], dim=1)
        )
        return found


@contextmanager
def client_with_columns(
    folder: Path, noise: Mapping[str, Any] = MappingProxyType({}), /, **columns: list[str]
) -> Iterator[Client]:
    """An ad server with a committed dataset of a task with an encoder of these columns."""
    encoder = fit(columns, FitSettings())
    of = sealed(expires_at=1 << 39, encoder=encoder.digest, **noise)
    add_dataset(one := Site(folder / "columns", of), of, encoder)
    with Client.of(LocalAdServer(data=one.data_dir)) as client:
        yield client
    one.engine.dispose()


NUMBERS = [str(row) for row in range(400)]


def test_a_lookup_into_a_column_of_numbers_is_refused_before_it_costs_anything(tmp_path: Path) -> None:
    with client_with_columns(tmp_path, **dict.fromkeys("abcd", NUMBERS)) as client:
        with pytest.raises(InvalidModel, match=r"0 \(a\) only as rows .*--any-columns, check_columns=False"):
            client.train(LookedUp(256), **settings())
        assert client.jobs() == []
        client.train(LookedUp(256), check_columns=False, **settings())
        assert len(client.jobs()) == 1


class Coded(torch.nn.Module):
    """The first feature, times a factor, picks a row of a table."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor, self.table, self.last = factor, torch.nn.Embedding(400, 2), torch.nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = (x[:, 0] * self.factor).long()
        found: torch.Tensor = self.last(torch.cat([self.table(row), x[:, [1, 2, 3]]], dim=1))
        return found


@pytest.mark.parametrize(
    ("words", "factor", "why"),
    [
        (NUMBERS, 256, r"0 \(a\) only as rows of a table"),
        ([f"word {row % 9}" for row in range(400)], 255, "features times 255"),
        ([f"word {row % 9}" for row in range(400)], 1, "reads row 0 for every record"),
    ],
)
def test_plan_and_rehearsal_refuse_the_columns_that_train_refuses(
    words: list[str], factor: int, why: str, tmp_path: Path
) -> None:
    panel, wrong = tmp_path / "panel.npz", Coded(factor)
    panel.write_bytes(eval_set_npz(OF))
    loss: dict[str, Any] = {"loss": "binary_cross_entropy_with_logits"}
    file = as_onnx(wrong, 4)
    with client_with_columns(tmp_path, a=words, **dict.fromkeys("bcd", NUMBERS)) as client:
        said = set[str]()
        for ask in (
            lambda: client.train(file, **settings()),
            lambda: client.plan(file, rounds=4, **loss),
            lambda: client.rehearse(file, panel, learning_rate=1.0, **loss),
        ):
            with pytest.raises(InvalidModel, match=why) as refused:
                ask()
            said.add(str(refused.value))
        assert len(said) == 1


def test_a_plan_warns_of_columns_and_loss_as_train_does(tmp_path: Path) -> None:
    with client_with_columns(tmp_path, NOISE, **dict.fromkeys("abcd", NUMBERS)) as client:
        with pytest.warns(UserWarning, match="only as rows of a table|mse makes") as warned:
            planned = client.plan(LookedUp(256), loss="mse", rounds=4, check_columns=False)
        assert planned["warnings"] == [str(one.message) for one in warned]
    assert len(warned) == 2
    assert "mse makes the output a number" in str(warned[1].message)
    assert {one.filename for one in warned} == {__file__}


def read_call(shown: str) -> dict[str, Any]:
    """Return the arguments of a `client.train(model, ...)` that a plan shows, with its imports named."""
    call = ast.parse(shown, mode="eval").body
    assert isinstance(call, ast.Call)
    assert (ast.unparse(call.func), [ast.unparse(one) for one in call.args]) == ("client.train", ["model"])
    imported = {
        (statement.module, one.name)
        for statement in ast.parse(shown.partition("  # ")[2]).body
        if isinstance(statement, ast.ImportFrom)
        for one in statement.names
    }
    found = dict[str, Any]()
    for argument in call.keywords:
        assert argument.arg is not None
        match argument.value:
            case ast.Call(func=ast.Name(id="Schedule"), args=[], keywords=fields):
                assert imported == {(one.__module__, one.__name__) for one in (Schedule, ScheduleKind)}
                found[argument.arg] = Schedule(**{one.arg or "": read_value(one.value) for one in fields})
            case value:
                found[argument.arg] = read_value(value)
    return found


def read_value(shown: ast.expr) -> Any:
    match shown:
        case ast.Attribute(value=ast.Name(id="ScheduleKind"), attr=name):
            return ScheduleKind[name]
        case _:
            return ast.literal_eval(shown)


@pytest.mark.parametrize(
    "chosen",
    [
        {"noise": "correlated"},
        {"noise": "correlated", "momentum": 0.0},
        {"momentum": 0.5, "train": ["*weight*"], "check_columns": False},
        {"freeze": ["*bias*"], "dataset": NOISED.datasets[0].dataset_id.hex()},
        {"learning_rate": 0.2, "schedule": Schedule(kind=ScheduleKind.STEP, step_rounds=3)},
        {"epsilon": 2.0},
    ],
)
def test_the_call_that_a_plan_shows_trains_the_job_that_was_planned(
    chosen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_correlated = "noise" in chosen
    batch_size = 10.0 if is_correlated else float(RECORDS)
    add_dataset(one := Site(tmp_path / "noised", NOISED), NOISED)
    with Client.of(LocalAdServer(data=one.data_dir)) as client:
        planned = client.plan(exported(), rounds=8, batch_size=batch_size, **chosen)
        best = planned["recommended"]
        call = repr(planned).splitlines()[1].removeprefix("train it with: ")
        submissions = list[Submission]()
        submit = client.server.submit

        def keep(submission: Any) -> JobRecord:
            submissions.append(submission)
            return submit(submission)

        monkeypatch.setattr(client.server, "submit", keep)
        blanks: dict[str, Any] = {
            "loss": "binary_cross_entropy_with_logits",
            "eval_set": None,
            "learning_rate": 0.3,
        }

        given = {name: blanks[name] if one is ... else one for name, one in read_call(call).items()}
        plan = client.train(exported(), wait=False, progress=False, **given).record.plan
    one.engine.dispose()
    [asked] = submissions
    assert isinstance(plan, TrainingPlan)
    spec = plan.job
    assert (spec.rounds, spec.noise_multiplier) == (8, best["noise_multiplier"])
    assert (spec.carried, plan.denominator) == (best["carried"], batch_size)
    assert (spec.carried is not None) is is_correlated
    assert asked.train == tuple(chosen.get("train", ()))
    assert asked.freeze == tuple(chosen.get("freeze", ()))
    assert asked.are_columns_checked is chosen.get("check_columns", True)
    assert asked.dataset == chosen.get("dataset", "")
    assert asked.epsilon == chosen.get("epsilon")
    assert plan.schedule == chosen.get("schedule", Schedule(kind=ScheduleKind.COSINE))
    if (momentum := chosen.get("momentum", 0.9)) != 0:
        assert plan.optimizer.momentum == momentum
    assert (plan.optimizer.kind == "momentum") is (momentum != 0)


def test_a_plan_for_an_epsilon_shows_what_train_takes_of_it_and_the_rate_of_the_rule(tmp_path: Path) -> None:
    add_dataset(one := Site(tmp_path / "noised", NOISED), NOISED)
    with Client.of(LocalAdServer(data=one.data_dir)) as client:
        call = "train it with: client.train(model, loss=..., eval_set=..., {})"
        planned = client.plan(exported(), epsilon=2.0)
        job = client.train(exported(), loss=LOGITS, epsilon=2.0, wait=False, progress=False).record.plan
        assert isinstance(job, TrainingPlan)
        rate = f"its learning rate is {job.optimizer.learning_rate:g}, by the rule for {RECORDS} reports"
        shown = repr(planned).splitlines()
        assert shown[1] == call.format("epsilon=2")
        assert shown[2] == f"{rate}, unless you name one (learning_rate=)"
        assert planned["rule_rate"] == job.optimizer.learning_rate
        assert planned["recommended"]["submit"] == "--epsilon 2"
        for how, given in (
            ({"num_parameters": 5}, "epsilon=2, rounds=120"),  # a model with a hidden layer may take more
            ({"model": exported(), "rounds": 120}, "epsilon=2, rounds=120"),
            ({"model": exported(), "rounds": 1, "batch_size": 20}, "epsilon=2, rounds=1, batch_size=20"),
        ):
            assert repr(client.plan(epsilon=2.0, **how)).splitlines()[1] == call.format(given)
        # Correlated noise has no rule of the rate, and its 64ths are of the noise that was found
        correlated = client.plan(exported(), epsilon=2.0, rounds=8, batch_size=20)
        assert "noise='correlated'" in repr(correlated)
        assert "noise_multiplier=" in repr(correlated).splitlines()[1]
        assert correlated["rule_rate"] is None
    one.engine.dispose()


def test_a_plan_warns_of_a_rate_far_above_the_rules_in_the_words_of_train(tmp_path: Path) -> None:
    add_dataset(one := Site(tmp_path / "noised", NOISED), NOISED)
    with Client.of(LocalAdServer(data=one.data_dir)) as client:
        asked: dict[str, Any] = {"epsilon": 2.0, "learning_rate": 500.0}
        planned = warnings_of(lambda: client.plan(exported(), **asked))
        how = settings(progress=False, standardise=False, rounds=None, **asked)
        trained = warnings_of(lambda: client.train(exported(), **how))
        said = [str(one.message) for one in planned]
        assert said == [text for one in trained if "times the rule" in (text := str(one.message))]
        assert re.match(r"learning rate 500 is [\d,]+ times the rule's, .*mostly learns nothing", said[0])
        client.plan(exported(), epsilon=2.0, learning_rate=500.0, schedule="constant")  # has no rule
    one.engine.dispose()


def test_plan_and_rehearse_say_what_a_module_does_only_in_training_mode_as_train_does(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_dataset(one := Site(tmp_path / "noised", NOISED), NOISED)
    monkeypatch.setattr(rehearsal, "rehearse", lambda *_, encoder: None)
    (tmp_path / "panel.npz").write_bytes(eval_set_npz(OF))
    layers = (torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
    network, job = torch.nn.Sequential(*layers), settings(progress=False)
    at_train = [str(one.message) for one in warnings_of(lambda: client.train(network, **job))]
    with Client.of(LocalAdServer(data=one.data_dir)) as noised:
        at_plan = [str(one.message) for one in warnings_of(lambda: noised.plan(network, rounds=8))]
    del job["wait"]
    at_rehearsal = warnings_of(lambda: client.rehearse(network, tmp_path / "panel.npz", **job))
    assert at_plan == [str(one.message) for one in at_rehearsal][:2] == at_train[:2]
    assert at_plan[0].startswith("dropout ('2') is not applied")
    assert at_plan[1].startswith("batch norm ('1') has seen no record")
    assert {one.filename for one in at_rehearsal} == {__file__}
    one.engine.dispose()


def warnings_of(ask: Callable[[], object]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ask()
    return found


def test_evaluation_sets_of_the_same_rows_are_one_however_they_are_written(
    client: Client, tmp_path: Path
) -> None:
    panel = tmp_path / "panel.npz"
    rows = read_eval_set(eval_set_npz(OF))
    labels = rows.labels

    def digest(write: Callable[..., None], numbers: Any) -> bytes | None:
        write(panel, features=rows.features, labels=numbers)
        return client.train(exported(), eval_set=panel, **settings()).record.eval_set_digest

    first = digest(np.savez, labels)
    assert first is not None
    assert {digest(np.savez_compressed, labels), digest(np.savez, labels.astype(np.int32))} == {first}
    assert digest(np.savez, 1 - labels) not in {first, None}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"loss": "bce"}, "bce"),
        ({"loss": [{"targets": [0, 1], "weight": [1, 2]}]}, "unknown setting 'weight'"),
        ({"loss": [{"targets": [0, 1, 2]}]}, "has targets for 3 label codes, the task has 2"),
        ({"optimizer": "adamw"}, "optimizer must be"),
        ({"sampling": "shuffle"}, "sampling must be"),
        ({"schedule": "warm"}, "schedule must be"),
        ({"clip_norm": 7.0}, "clip_norm is 7, but its task allows at most"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"epsilon": 1.0}, "the task adds no noise"),
        ({"rounds": 0}, "rounds"),
        ({"carried": 3}, "`carried` requires correlated noise"),
        ({"name": "n" * 101}, "the job's name has 101 characters"),
        ({"dataset": "ffff"}, "dataset"),
    ],
)
def test_a_wrong_setting_is_said_before_the_model_is_exported(
    given: dict[str, Any], why: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(*_: object) -> bytes:
        raise AssertionError("exported")

    monkeypatch.setattr(training, "as_onnx", export)
    panel = tmp_path / "panel.npz"
    panel.write_bytes(eval_set_npz(OF))
    job = settings(**given)
    with pytest.raises(MaskedLarkError, match=why):
        client.train(module(), **job)
    del job["wait"]
    if "epsilon" not in given:  # a rehearsal without noise has none
        with pytest.raises(MaskedLarkError, match=why):
            client.rehearse(module(), panel, **job)
    if not given.keys().isdisjoint({"sampling", "schedule"}) or given.get("loss") == "bce":
        with pytest.raises(MaskedLarkError, match=why):
            client.plan(module(), **given)
    with pytest.raises(AssertionError, match="exported"):
        client.train(module(), **settings())


def test_a_job_behind_another_says_so_without_a_bar_too(
    site: Site, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (client.train(exported(), standardise=False, **settings()) for _ in range(2))
    with site.engine.begin() as connection:
        running = {"state": JobState.RUNNING, "lease_until_s": 1e12}
        connection.execute(update(jobs).where(jobs.c.job_id == first.job_id).values(running))
    capsys.readouterr()
    looks = list[str]()

    def look(job: str) -> JobRecord:
        looks.append(job)
        found = client.server.job(job)
        is_over = looks.count(second.job_id.hex()) > 1 and found.job_id == second.job_id
        return replace(found, state=JobState.DONE) if is_over else found

    server: Any = SimpleNamespace(job=look, jobs=client.server.jobs)
    Job(job_id=second.job_id, at=server).wait(progress=False)
    told = f"waiting: job {second.job_id.hex()[:12]} waits behind job {first.job_id.hex()[:12]}\n"
    assert capsys.readouterr() == ("", told)


def test_a_submission_gets_the_remarks_of_train(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    given = settings(rounds=1, clip_norm=0.5)
    client.train(exported(), **given)
    said = capsys.readouterr().err
    assert "no evaluation set" in said
    del given["wait"]
    submission = replace(_submission(**given), model=exported())
    client.submit(submission)
    assert capsys.readouterr().err == said
    with pytest.warns(UserWarning, match="no evaluation set") as warned:
        client.submit(submission, progress=False)
    assert [one.filename for one in warned] == [__file__]
    assert capsys.readouterr().err == ""


def test_a_rehearsal_refuses_a_table_that_is_too_short_as_training_does(tmp_path: Path) -> None:
    words = [f"word {row % 90}" for row in range(400)]
    (tmp_path / "panel.npz").write_bytes(eval_set_npz(OF))
    job: dict[str, Any] = {"loss": "binary_cross_entropy_with_logits"}
    with client_with_columns(tmp_path, a=words, **dict.fromkeys("bcd", NUMBERS)) as client:
        for ask in (
            lambda: client.rehearse(LookedUp(16), tmp_path / "panel.npz", learning_rate=1.0, **job),
            lambda: client.train(LookedUp(16), **settings()),
        ):
            with pytest.raises(InvalidModel, match="column 'a' names rows up to"):
                ask()


def test_a_panel_of_another_encoder_is_refused_before_it_costs_anything(tmp_path: Path) -> None:
    panel, features = tmp_path / "panel.npz", np.eye(4, dtype=np.uint8)
    np.savez(panel, features=features, labels=np.arange(4) % 2, encoder=np.zeros(32, np.uint8))
    with client_with_columns(tmp_path, **dict.fromkeys("abcd", NUMBERS)) as client:
        for ask in (
            lambda: client.rehearse(exported(), panel, loss="binary_cross_entropy_with_logits"),
            lambda: client.train(exported(), eval_set=panel, **settings()),
        ):
            with pytest.raises(JobRefused, match=r"encoder 0{12}, but the task's is .*: encode it again"):
                ask()
        assert client.jobs() == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"rounds": "60"}, "rounds is '60': expected one number"),
        ({"batch_size": "20"}, "batch_size is '20': expected one number"),
        ({"eval_set": {"features": []}}, "eval_set is of type dict: expected the path of an .npz"),
    ],
)
def test_a_number_in_quotes_and_a_panel_that_is_no_file_are_named(
    client: Client, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidTask, match=re.escape(why)):
        client.train(exported(), **settings(**given))
    quoted: Any = "2"
    with pytest.raises(InvalidTask, match="epsilon is '2': expected one number"):
        client.evaluate(exported(), epsilon=quoted)
    with pytest.raises(InvalidTask, match="epsilon is '2': expected one number"):
        client.aggregate("count", epsilon=quoted)
    with pytest.raises(InvalidTask, match="seeds is '2': expected one number"):
        client.rehearse(exported(), "panel.npz", loss="mse", seeds=quoted)
    with pytest.raises(InvalidTask, match="clip_norm is '1': expected one number"):
        client.create_task(**{**TASK, "clip_norm": "1"}, num_features=4, classes=2)


def test_an_untrained_network_without_a_panel_is_warned_of_with_what_a_panel_would_change(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "panel.npz").write_bytes(eval_set_npz(OF))
    features = OF.datasets[0].shares.features
    np.savez(tmp_path / "ones.npz", features=features, labels=np.ones(len(features), np.int64))
    for given, warned in (
        ({}, "warning: no evaluation set, so an untrained network trains as it is; with one its "),
        ({"standardise": False}, ""),
        ({"eval_set": tmp_path / "panel.npz"}, ""),
        ({"freeze": ["bias"]}, ""),
        ({"eval_set": tmp_path / "ones.npz"}, "records of the evaluation set have the label 1: it neither"),
    ):
        client.train(exported(), progress=True, **settings(rounds=1, **given))
        said = capsys.readouterr().err
        assert warned in said
        assert ("warning" in said) == bool(warned)
        assert not re.search("--(eval-set|as-it-is|panel)|adserver ", said)


def test_a_job_is_found_by_its_own_id_and_one_epsilon_is_a_list_of_one(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.train(exported(), **settings())
    assert client.job(job.job_id).job_id == client.job(job.job_id.hex()).job_id == job.job_id
    wishes: list[rehearsal.Wish] = []
    monkeypatch.setattr(rehearsal, "rehearse", lambda *given, encoder: wishes.append(given[3]))
    (tmp_path / "panel.npz").write_bytes(eval_set_npz(OF))
    client.rehearse(exported(), tmp_path / "panel.npz", loss="mse", epsilons=3, learning_rates=0.5)
    assert (wishes[0].epsilons, wishes[0].learning_rates) == ((3,), (0.5,))
    with pytest.raises(TypeError, match=r"^rehearse\(\) has no parameter 'epochs': did you mean rounds"):
        client.rehearse(exported(), tmp_path / "panel.npz", loss="mse", epochs=3)
    with pytest.raises(TypeError, match=r"^rehearse\(\) needs loss: "):
        client.rehearse(exported(), tmp_path / "panel.npz")


def test_a_network_of_weighted_classes_is_trained_calibrated_and_read_as_one_without_weights(
    site: Site, client: Client, tmp_path: Path
) -> None:
    panel = tmp_path / "panel.npz"
    panel.write_bytes(eval_set_npz(OF))
    examples, logits = read_eval_set(panel.read_bytes()), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
    weighted: Any = [{"targets": [0, 1], "weights": [1, 5]}]
    job = client.train(exported(), eval_set=panel, progress=False, **settings(loss=weighted))
    site.worker().run_one()
    assert job.wait(progress=False).state is JobState.DONE
    last = job.figures()[-1]
    assert last.auc is not None
    assert last.calibrated_loss is not None
    assert notes_of(job.export(weights="best"))[LOSS_IS] == logits
    plain = evaluate(job.export(), examples.features, examples.labels, logits)
    assert (plain.auc, plain.loss) == (last.auc, last.loss)
    # Five times the weight of label 1, so it is predicted too often
    assert plain.mean_over_rate is not None
    assert plain.mean_over_rate > 1.1
    made = job.calibrate(panel=panel).exported.encoded
    found = evaluate(made, examples.features, examples.labels, logits)
    assert found.mean_over_rate == pytest.approx(1, abs=0.01)
    assert found.loss == pytest.approx(last.calibrated_loss, abs=1e-3)
    assert "model calibrate" in (calibrate_command(job.record) or "")


def test_a_network_of_inverted_targets_has_no_score_that_would_be_read_the_wrong_way_round(
    site: Site, client: Client, tmp_path: Path
) -> None:
    panel = tmp_path / "panel.npz"
    panel.write_bytes(eval_set_npz(OF))
    inverted: Any = [{"targets": [1, 0]}]
    job = client.train(exported(), eval_set=panel, progress=False, **settings(loss=inverted, rounds=1))
    site.worker().run_one()
    last = job.wait(progress=False).figures()[-1]
    assert last.loss is not None
    assert (last.auc, last.calibrated_loss) == (None, None)
    assert LOSS_IS not in notes_of(job.export())
    assert calibrate_command(job.record) is None
    with pytest.raises(InvalidTask, match=r"the targets \[1, 0\] are not the one probability of label 1"):
        job.calibrate(panel=panel)


def test_without_progress_what_should_be_acted_on_is_warned_of_at_the_callers_line_and_nothing_is_printed(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "panel.npz").write_bytes(eval_set_npz(OF))
    general = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU(), torch.nn.Linear(3, 1))
    given = {"eval_set": tmp_path / "panel.npz", **settings(rounds=1)}
    with pytest.warns(UserWarning, match="general path") as found:
        client.train(general, **given, public_samples=True, progress=False)
    assert [str(one.message).split(",")[0] for one in found] == ["the model trains on the general path"]
    assert {one.filename for one in found} == {__file__}
    with pytest.warns(UserWarning, match="mse makes the output a number") as found:
        client.rehearse(
            *(exported(), tmp_path / "panel.npz"),
            loss="mse",
            learning_rate=1.0,
            seeds=1,
            progress=False,
        )
    assert [one.filename for one in found] == [__file__]
    # Its rate was named and its features are scaled, which is nothing to act on
    client.train(exported(), **given, progress=False)
    assert capsys.readouterr() == ("", "")
    # What is printed is not warned of as well: a warning would be an error here
    client.train(general, **given, public_samples=True)
    assert capsys.readouterr().err.count("warning: the model trains on the general path") == 1


@pytest.mark.parametrize(
    ("changes", "missing"),
    [({"eval_set": None}, True), ({"epsilon": None, "noise_multiplier": 4.0}, True), ({"loss": "mse"}, True),
     ({"learning_rate": 0.1}, False), ({"clip_norm": 0.5}, False), ({"freeze": ["a"]}, False),
     ({"optimizer": "adam", "learning_rate": 0.1}, False), ({"epsilon": -1.0}, None)],
)  # fmt: skip
def test_without_a_model_the_default_network_trains_by_its_rule(
    changes: dict[str, Any], missing: bool | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {**dict.fromkeys("abc", NUMBERS), "d": [f"word {row % 9}" for row in range(400)]}
    (panel := tmp_path / "panel.npz").write_bytes(eval_set_npz(sealed()))
    given: dict[str, Any] = {
        "loss": "binary_cross_entropy_with_logits", "epsilon": 2.0, "eval_set": panel, "wait": False,
    }  # fmt: skip
    with client_with_columns(tmp_path, MappingProxyType({"mechanism": "gaussian"}), **columns) as client:
        job = client.train(**given)
        plan = client.server.job(job.job_id.hex()).plan
        assert isinstance(plan, TrainingPlan)
        expected = choose_default(
            plan.task,
            fit(columns, FitSettings()),
            read_eval_set(panel.read_bytes()),
            reports=RECORDS,
            epsilon=2.0,
            outputs=1,
            loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
        )
        assert plan.job.model_digest == parse(expected.model, num_features=NUM_FEATURES).digest
        assert plan.job.rounds == 120
        assert "no model is given, so the default network of 40 reports trains: " in capsys.readouterr().err
        why = {
            True: "requires a task with an encoder, eval_set=FILE",
            False: "of its own: leave out",
            None: "epsilon must be positive",
        }[missing]
        with pytest.raises(InvalidTask, match=why):
            client.train(**{**given, **changes})
        assert len(client.jobs()) == 1


def test_the_default_network_trains_until_its_budget(tmp_path: Path) -> None:
    (panel := tmp_path / "panel.npz").write_bytes(eval_set_npz(sealed()))
    with client_with_columns(
        tmp_path, MappingProxyType({"mechanism": "gaussian"}), **dict.fromkeys("abcd", NUMBERS)
    ) as client:
        job = client.train(
            loss="binary_cross_entropy_with_logits", epsilon=1.0, noise_multiplier=60.0, until_budget=True,
            eval_set=panel, wait=False,
        )  # fmt: skip
        plan = client.server.job(job.job_id.hex()).plan
        assert isinstance(plan, TrainingPlan)
        assert plan.is_until_budget
        assert plan.job.rounds > 120


def test_the_default_network_requires_a_task_with_noise(tmp_path: Path) -> None:
    (panel := tmp_path / "panel.npz").write_bytes(eval_set_npz(sealed()))
    with (
        client_with_columns(tmp_path, **dict.fromkeys("abcd", NUMBERS)) as client,
        pytest.raises(InvalidTask, match="the task adds no noise: give a model"),
    ):
        client.train(loss="binary_cross_entropy_with_logits", eval_set=panel, epsilon=1.0)


def test_the_default_network_requires_an_encoder(tmp_path: Path) -> None:
    of = sealed(mechanism="gaussian", expires_at=1 << 39)
    add_dataset(one := Site(tmp_path / "plain", of), of)
    (panel := tmp_path / "panel.npz").write_bytes(eval_set_npz(of))
    with (
        Client.of(LocalAdServer(data=one.data_dir)) as client,
        pytest.raises(InvalidTask, match="requires a task with an encoder"),
    ):
        client.train(loss="binary_cross_entropy_with_logits", eval_set=panel, epsilon=1.0)
    one.engine.dispose()
