"""The values of pages: no cost is shown as that of rounds which it does not hold."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import insert, update

from adserver.dashboard import page_data
from adserver.dashboard.page_data import Figures
from adserver.dashboard.rendering import draw, environment
from adserver.dashboard.ttl_cache import TtlCache
from adserver.measuring.request import Request, plan_query
from adserver.records.job_state import JobState
from adserver.records.training_plan import TrainingPlan
from adserver.store.datasets import Dataset
from adserver.store.schema import datasets, job_rounds, jobs
from adserver.training.cost import job_epsilons
from adserver.views.job import print_job
from maskedlark.errors import JobReason, JobRefused
from maskedlark.terminal.budget_view import next_line
from tests.adserver.job_world import RECORDS, plan_for
from tests.adserver.painted import OF, SHOP_DATASET, SHOP_OF, Painted, painted
from tests.patience import HANGS_S

RUNNING = b"\2" * 16
COLUMNS = ("handle", "task_id", "state", "created_at", "received", "size", "dataset_id")


@pytest.fixture
def of(tmp_path: Path) -> Iterator[Painted]:
    made = painted(tmp_path / "adserver")
    yield made
    made.close()


@pytest.fixture
def figures(of: Painted, monkeypatch: pytest.MonkeyPatch) -> Iterator[Figures]:
    monkeypatch.setattr(page_data, "_PATIENCE_S", HANGS_S)
    made = Figures(of.site)
    yield made
    made.close()


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Keep a computation of this name from ending, until the test ends."""
    go = Event()

    def hold(name: str) -> None:
        compute = getattr(page_data, name)

        def slowly(*given: Any) -> Any:
            assert go.wait(HANGS_S)
            return compute(*given)

        monkeypatch.setattr(page_data, name, slowly)
        monkeypatch.setattr(page_data, "_PATIENCE_S", 0.0)

    yield hold
    go.set()


def page(template: str, values: dict[str, Any]) -> str:
    around = {"navigation": (), "place": "", "may_operate": False}
    return re.sub(r"\s+", " ", draw(environment(), template, {**around, **values}))


def row_of(figures: Figures, job_id: bytes) -> dict[str, Any]:
    row: dict[str, Any]
    [row] = [one for one in figures.jobs("", "")["compared"] if one["job_id"] == job_id.hex()]
    return row


def end(of: Painted, job_id: bytes, **columns: Any) -> None:
    with of.engine.begin() as connection:
        connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(columns))


def test_a_running_jobs_epsilon_of_fewer_rounds_says_of_how_many(
    of: Painted, figures: Figures, hold: Callable[[str], None]
) -> None:
    plan = of.jobs.get(RUNNING).plan
    assert isinstance(plan, TrainingPlan)
    cost = job_epsilons(plan, 37)
    assert row_of(figures, RUNNING)["epsilons"] == {
        "rounds": 37,
        "ad_server": cost.ad_server,
        "colluding": cost.colluding,
    }
    assert "of 37 rounds" not in page("jobs.html", figures.jobs("", ""))
    hold("job_epsilons")
    of.round(RUNNING, 38)
    row = row_of(figures, RUNNING)
    assert (row["rounds_done"], row["epsilons"]["rounds"]) == (38, 37)
    shown = page("jobs.html", figures.jobs("", ""))
    for epsilon in (cost.ad_server, cost.colluding):
        assert f'{epsilon:.3g} <span class="under">of 37 rounds</span>' in shown


def test_an_ended_job_shows_no_epsilon_until_that_of_all_its_rounds_is_there(
    of: Painted, figures: Figures, hold: Callable[[str], None]
) -> None:
    assert row_of(figures, RUNNING)["epsilons"]["rounds"] == 37
    hold("job_epsilons")
    end(of, RUNNING, state=JobState.DONE, rounds_done=60)
    assert row_of(figures, RUNNING)["epsilons"] == {}
    assert page("jobs.html", figures.jobs("", "")).count('title="is being computed">…<') == 2


def test_a_job_says_which_charged_rounds_its_model_lacks(
    of: Painted, figures: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    cancelled = b"\5" * 16
    assert "charged" not in page("job.html", figures.job(cancelled.hex()))
    for charged, said in (
        (15, "15 are charged: 1 was answered by a helper and not applied"),
        (16, "16 are charged: 2 were answered by a helper and not applied"),
    ):
        end(of, cancelled, rounds_charged=charged)
        assert said in page("job.html", figures.job(cancelled.hex()))
        print_job(of.jobs.get(cancelled), ())
        assert said in " ".join(capsys.readouterr().out.split())


def test_jobs_on_several_evaluation_sets_say_which(of: Painted, figures: Figures) -> None:
    assert "eval set" not in page("jobs.html", figures.jobs("", ""))
    end(of, RUNNING, eval_set_digest=b"\x08" * 32)
    shown = page("jobs.html", figures.jobs("", ""))
    assert "These jobs have different evaluation sets" in shown
    assert {row_of(figures, job)["eval_set"][:2] for job in (RUNNING, b"\3" * 16)} == {"08", "07"}
    assert f'<span class="under">eval set {"08" * 6}</span>' in shown
    end(of, RUNNING, eval_set_digest=None)
    shown = page("jobs.html", figures.jobs("", ""))
    assert shown.count("eval set") == shown.count(f"eval set {'07' * 6}</span>") > 0


def test_a_jobs_page_has_a_loss_only_where_it_is_evaluated(figures: Figures) -> None:
    unknown = dict.fromkeys(("loss", "calibrated_loss", "accuracy", "auc"))
    told, tile = {**figures.job("01"), **unknown}, "before the first round</span>"
    assert tile in page("job.html", told)
    assert tile not in page("job.html", {**told, "eval_set_digest": None})
    assert "no round is evaluated yet</span>" in page("job.html", {**told, "evaluated_after": None})


def test_a_jobs_page_warns_of_a_loss_that_rose_and_has_the_best_round_as_the_command_does(
    of: Painted, figures: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = figures.job(RUNNING.hex())
    assert (shown["warning"], shown["evaluated_after"]) == ("", 36)
    is_late = (job_rounds.c.job_id == RUNNING) & (job_rounds.c.rounds_done > 20)
    with of.engine.begin() as connection:
        evaluated = is_late & job_rounds.c.loss.is_not(None)
        connection.execute(update(job_rounds).where(evaluated).values(loss=4.949, calibrated_loss=4.9))
    # What is known of a round is read once
    of.round(RUNNING, 39)
    shown = figures.job(RUNNING.hex())
    print_job(of.jobs.get(RUNNING), of.jobs.history(RUNNING))
    printed = " ".join(capsys.readouterr().out.split())
    assert "the calibrated loss rose from" in shown["warning"]
    assert shown["warning"] in printed
    assert f"best after {shown['best']['rounds_done']} rounds {shown['best']['line']};" in printed
    assert shown["best"]["line"].endswith(", the latest within 1 % of the least calibrated loss")
    told = page("job.html", shown)
    assert f"T{shown['warning'][1:]}.</p>" in told
    assert f"Best after {shown['best']['rounds_done']} rounds: {shown['best']['line']}" in told
    assert f'href="/jobs/{RUNNING.hex()}/model.onnx?weights=best"' in told
    assert "weights=best" not in page("job.html", {**shown, "best": None})


def test_an_id_that_no_budget_has_is_said_to_be_no_datasets(figures: Figures) -> None:
    with pytest.raises(JobRefused, match="no dataset has an id that starts with '0000'") as refusal:
        figures.budget("0000", {})
    assert refusal.value.reason is JobReason.UNKNOWN_DATASET


def test_a_budget_says_of_a_next_release_what_every_face_says(of: Painted, figures: Figures) -> None:
    dataset = OF.datasets[0].dataset_id
    values = figures.budget(dataset.hex(), {})
    [budget] = of.client.budgets(dataset=dataset.hex())
    assert values["budget"]["next_line"] == next_line(budget)
    assert f"{next_line(budget)[1:]}.</p>" in page("budget.html", values)
    values["budget"] |= {"next_line": "a next query may ask for more", "next_epsilon": 1e9}
    assert "A next query may ask for more.</p>" in page("budget.html", values)


def test_a_budget_older_than_its_newest_round_says_so(
    of: Painted, figures: Figures, hold: Callable[[str], None]
) -> None:
    dataset = OF.datasets[0].dataset_id.hex()
    assert figures.budget(dataset, {})["budget"]["as_of"] is None
    hold("_describe_budget")
    of.round(RUNNING, 38)
    of.clock.now_s += 3.0
    [listed] = [one["budget"] for one in figures.budgets("")["items"] if one["dataset_id"] == dataset]
    assert listed["as_of"] == of.clock.now_s - 3.0
    for template, values in (
        ("budgets.html", figures.budgets("")),
        ("budget.html", figures.budget(dataset, {})),
    ):
        assert "UTC; more may be spent by now" in page(template, values)


def test_a_new_job_or_query_counts_in_a_budget_at_once(of: Painted, figures: Figures) -> None:
    dataset = OF.datasets[0].dataset_id.hex()

    def held() -> tuple[float, float]:
        shown = figures.budget(dataset, {})["budget"]
        [listed] = [one["budget"] for one in figures.budgets("")["items"] if one["dataset_id"] == dataset]
        assert shown == listed
        [told] = of.client.budgets(dataset=dataset)
        assert (shown["as_of"], shown["ad_server"]["held"]) == (None, told.ad_server.held)
        return shown["ad_server"]["held"], shown["ad_server"]["reserved"]

    before = held()
    plan = plan_for(OF, job_id=b"\x17" * 16, rounds=50, batch_size=float(RECORDS), noise_multiplier=30.0)
    of.jobs.submit(plan)
    accepted = held()
    assert accepted > before
    end(of, b"\x17" * 16, state=JobState.CANCELLED, is_closed=True, rounds_charged=0)
    assert held() == before


def ask(of: Painted, dataset: Dataset, number: int, epsilon: float) -> bytes:
    query_id = bytes([number]) * 16
    request = Request(values=("count",), epsilon=epsilon)
    planned = plan_query(request, task=SHOP_OF.task, dataset=dataset, query_id=query_id)
    assert of.site.queries.add(planned, asked_at=of.clock.now_s + number)
    return query_id


def test_a_query_in_the_place_of_a_refused_one_counts_in_a_budget(of: Painted, figures: Figures) -> None:
    def held() -> float:
        shown: float = figures.budget(SHOP_DATASET.hex(), {})["budget"]["ad_server"]["held"]
        return shown

    dataset, before = of.site.datasets.find(SHOP_DATASET.hex()), held()
    refused = ask(of, dataset, 7, epsilon=0.1)
    pending = held()
    of.site.queries.remove(refused)
    ask(of, dataset, 8, epsilon=0.9)
    assert before < pending < held()


@pytest.mark.parametrize("is_of_people", [False, True])
def test_a_budget_of_people_changes_with_a_query_over_any_dataset_of_the_task(
    of: Painted, figures: Figures, monkeypatch: pytest.MonkeyPatch, is_of_people: bool
) -> None:
    monkeypatch.setattr(figures, "_is_of_people", lambda _: is_of_people)
    dataset = of.site.datasets.find(SHOP_DATASET.hex())
    other = replace(dataset, handle=b"n" * 16, dataset_id=b"n" * 32)
    with of.engine.begin() as connection:
        connection.execute(insert(datasets).values({name: getattr(other, name) for name in COLUMNS}))
    before = figures._stamps([dataset])
    ask(of, other, 7, epsilon=0.1)
    assert (figures._stamps([dataset]) != before) == is_of_people


def test_a_new_budget_is_never_shown_as_it_was_without_a_job(
    of: Painted, figures: Figures, hold: Callable[[str], None]
) -> None:
    dataset = OF.datasets[0].dataset_id.hex()
    assert figures.budget(dataset, {})["budget"] is not None
    hold("_describe_budget")
    of.jobs.submit(plan_for(OF, job_id=b"\x17" * 16, batch_size=float(RECORDS), noise_multiplier=30.0))
    values = figures.budget(dataset, {})
    assert values["budget"] is None
    assert "Adding up what each job and query" in page("budget.html", values)


def test_a_budget_too_old_for_its_newest_round_is_added_up_before_the_page_is_shown(
    of: Painted, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_budgets", TtlCache(lasts_s=0.0, threads=1))
    dataset = OF.datasets[0].dataset_id.hex()
    before = figures.budget(dataset, {})["budget"]
    of.round(RUNNING, 38)
    after = figures.budget(dataset, {})["budget"]
    assert after["as_of"] is None
    assert after["ad_server"]["spent"] > before["ad_server"]["spent"]


def test_jobs_side_by_side_have_the_epsilon_of_the_rounds_that_they_name(
    of: Painted, figures: Figures
) -> None:
    for rounds in (38, 39, 40):
        of.round(RUNNING, rounds)
        row, shown = row_of(figures, RUNNING), figures.job(RUNNING.hex())
        assert (row["rounds_done"], row["epsilons"]["rounds"]) == (rounds, rounds)
        assert row["epsilons"]["ad_server"] == shown["epsilon_spent"]
        assert row["epsilons"]["colluding"] == shown["collusion_epsilon_spent"]


def test_a_forecast_is_computed_beside_its_page_and_few_at_a_time(
    of: Painted, figures: Figures, hold: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = OF.datasets[0].dataset_id.hex()
    typed = {"rounds": "20", "noise_multiplier": "30"}
    assert figures.budget(dataset, {})["budget"] is not None
    hold("forecast_line")
    for rounds in range(20, 30):
        values = figures.budget(dataset, {**typed, "rounds": str(rounds)})
        assert (values["forecast"], values["budget"]["planned"]) == (None, None)
        assert "Computing what the job would do" in page("budget.html", values)
    assert figures._forecasts._making == page_data._MOST_COMPUTED
    monkeypatch.undo()
    before = figures.mark().budgets
    monkeypatch.setattr(page_data, "_PATIENCE_S", HANGS_S)
    figures._forecasts.close()
    monkeypatch.setattr(figures, "_forecasts", TtlCache(lasts_s=0.0, threads=1, most_making=2))
    values = figures.budget(dataset, typed)
    assert values["budget"]["planned"]["rounds"] == 20
    assert "Computing" not in page("budget.html", values)
    assert figures.mark().budgets != before


def test_a_refused_forecast_is_kept_and_the_budget_is_there(of: Painted, figures: Figures) -> None:
    dataset = OF.datasets[0].dataset_id.hex()
    for _ in range(2):
        values = figures.budget(dataset, {"rounds": "20", "batch_size": "3"})
        assert "expected at least the task's min_batch_size" in values["forecast"]
        assert values["budget"]["planned"] is None
    assert figures._forecasts.made_so_far == 1
