"""Federated rounds under kills, and that the run would see what it looks for."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from docs.tutorial.fleet import Fleet
from tests.chaos.books import Books
from tests.chaos.update_books import UpdateBooks
from tests.chaos.update_devices import holdings
from tests.chaos.update_rounds import Outcome, run
from tests.patience import HANGS_S

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3 * HANGS_S)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    folder = tmp_path_factory.mktemp("chaos")
    return run(10.0, folder, seed=7), folder


def every_job(folder: Path, rounds: int) -> list[UpdateBooks]:
    books = Books(fleet=Fleet(folder=folder / "parties"))
    found = books.rows("adserver", "SELECT DISTINCT task_id, job_id FROM update_rounds")
    return [UpdateBooks(books=books, task=task.hex(), job=job.hex(), rounds=rounds) for task, job in found]


def wrong_models(jobs: list[UpdateBooks], folder: Path) -> int:
    held = holdings(folder / "people.csv")
    return sum(not one.has_the_model(held, is_noisy=True) for one in jobs)


def test_killing_any_process_leaves_a_round_one_charge_one_answer_and_its_model(
    ran: tuple[Outcome, Path],
) -> None:
    outcome, _ = ran
    assert outcome.is_right, str(outcome)  # as a string, else the numbers are cut out


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        (
            "DELETE FROM used_reports WHERE report_id = (SELECT min(report_id) FROM used_reports)",
            lambda jobs, _: sum(one.misplaced() for one in jobs),
        ),
        (
            "DELETE FROM queries WHERE query_id = (SELECT min(query_id) FROM queries)",
            lambda jobs, _: sum(one.wrong_charges() for one in jobs),
        ),
        (
            "INSERT INTO queries SELECT task_id, randomblob(16), dataset_id, kind, spec, answer, entry "
            "FROM queries LIMIT 1",
            lambda jobs, _: sum(one.wrong_charges() for one in jobs),
        ),
        (
            # All but the agreement tag, which is 32 bytes.
            "UPDATE queries SET answer = "
            "CAST(substr(answer, 1, 32) || zeroblob(length(answer) - 32) AS BLOB) "
            "WHERE query_id = (SELECT min(query_id) FROM queries)",
            wrong_models,
        ),
    ],
    ids=["lost update", "no charge", "double charge", "other sum"],
)
@pytest.mark.parametrize("helper", ["helper-0", "helper-1"])
def test_a_ledger_that_was_changed_is_seen(
    ran: tuple[Outcome, Path],
    tmp_path: Path,
    helper: str,
    changed: str,
    wrong: Callable[[list[UpdateBooks], Path], int],
) -> None:
    outcome, folder = ran
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    jobs = every_job(copy, outcome.rounds)
    assert wrong(jobs, copy) == 0
    with closing(sqlite3.connect(copy / "parties" / helper / "ledger.sqlite3")) as ledger, ledger:
        assert ledger.execute(changed).rowcount > 0
    assert wrong(jobs, copy) > 0
