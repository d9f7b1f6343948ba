"""A task that protects a person, with real processes.

Training, queries and evaluations on several datasets share one budget, at the ad server and in both helpers'
ledgers.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from docs.tutorial.fleet import HELPERS, CommandFailed, Fleet
from tests.fleet_commands import create_model, create_task, seal, send_reports

pytestmark = [pytest.mark.slow, pytest.mark.long]
EPSILON = 4.0
VISITS = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A fleet with two sealed datasets of one task."""

    fleet: Fleet
    datasets: tuple[str, str]
    model: str

    def submit(self, dataset: str, *more: str) -> Any:
        return self.fleet.adserver_json(
            "job", "submit", "--dataset", dataset, "--model", self.model, "--loss", "cross_entropy",
            "--learning-rate", "0.1", *more, options=False,
        )  # fmt: skip

    def held(self) -> list[dict[str, Any]]:
        """What the ad server says of each dataset's budget against itself."""
        shown = self.fleet.adserver_json("budget", options=False)
        return [one["ad_server"] for one in shown]

    def ledgers(self) -> list[list[dict[str, Any]]]:
        """The same by each helper's own ledger."""
        return [
            [
                one["ad_server"]
                for one in json.loads(self.fleet.run("lark-helper", "budget", "--data", data, "--json"))
            ]
            for data in (str(self.fleet.data(name)) for name in HELPERS)
        ]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("a-person")
    with Fleet(folder=folder) as fleet:
        (folder / "measurement.json").write_text(
            json.dumps(
                {"min_cell_count": 20, "values": [{"name": "pages", "low": 0, "high": 50}], "keys": []}
            )
        )
        task = create_task(
            fleet,
            "shop",
            f"--wait --num-features 2 --classes 2 --default-label 0 --measurement {folder}/measurement.json"
            f" --min-batch-size 50 --clip-norm 1 --epsilon {EPSILON} --unit user",
        )
        datasets = [sealed(fleet, folder, task, number) for number in range(2)]
        model = str(create_model(fleet, folder / "model.onnx", (2, 2)))
        yield Shop(fleet=fleet, datasets=(datasets[0], datasets[1]), model=model)


def sealed(fleet: Fleet, folder: Path, task: str, number: int) -> str:
    """One dataset of visits; its id."""
    rows = [
        f"{one % 50},{(7 * one) % 60},{(3 * one + number) % 10},{int(one % 50 > 25)}" for one in range(VISITS)
    ]
    table = folder / f"visits-{number}.csv"
    table.write_text("\n".join(["pages,minutes,basket,bought", *rows]) + "\n")
    send_reports(
        fleet, task, f"--source csv --csv {table} --label bought --value pages=pages --seed {number}"
    )
    return str(seal(fleet, task)["dataset_id"])


def test_rounds_queries_and_evaluations_of_all_datasets_share_one_budget(shop: Shop) -> None:
    first, second = shop.datasets
    job = shop.submit(first, "--rounds", "3", "--epsilon", "1.2", "--wait")
    assert job["state"] == "done"
    after_training = shop.held()
    shop.fleet.adserver("aggregate", "--dataset", second, "--value", "count", "--epsilon", "0.6")
    shop.fleet.adserver("evaluate", "--job", job["job_id"], "--dataset", second, "--epsilon", "0.5")
    held = shop.held()
    assert len(held) == 2
    assert held[0] == held[1], "each dataset shows the one budget of the task"
    assert after_training[0]["spent"] < held[0]["spent"] <= 1.2 + 0.6 + 0.5 + 1e-6
    for ledger in shop.ledgers():
        assert [one["spent"] for one in ledger] == pytest.approx([held[0]["spent"]] * 2)
        assert [one["budget"] for one in ledger] == [EPSILON] * 2
    plan = shop.fleet.adserver_json(
        "job", "plan", "--model", shop.model, "--dataset", first, "--rounds", "4", options=False
    )
    together, alone = (plan["recommended"][name]["ad_server"] for name in ("together", "alone"))
    assert alone < together <= EPSILON
    assert alone < 0.95 * EPSILON, "other datasets' releases leave less for this one"
    for dataset in shop.datasets:
        with pytest.raises(CommandFailed, match="budget_exhausted"):
            shop.submit(dataset, "--rounds", "3", "--noise-multiplier", "1")
        with pytest.raises(CommandFailed, match="budget_exhausted"):
            shop.fleet.adserver("aggregate", "--dataset", dataset, "--value", "count", "--epsilon", "3.9")
    assert shop.held() == held, "what was refused costs nothing"
