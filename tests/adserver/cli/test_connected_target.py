"""Commands with --url do at an ad server elsewhere what they do beside it, and say the same."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from adserver.cli.main import app
from adserver.client.remote import RemoteAdServer
from adserver.peers import retrying
from adserver.records.access import GrantKind, Scope
from adserver.records.exported_model import ModelWeights
from adserver.store.datasets import Dataset
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from tests.adserver.asked_site import There, asked_site
from tests.adserver.job_world import ENCODED_MODEL
from tests.adserver.painted import OF, SHOP_DATASET, SHOP_OF
from tests.measured import dataset_of, measuring_world

DATASET = OF.datasets[0].dataset_id.hex()
SHOP = SHOP_DATASET.hex()
HELPERS = ("--helper-0", "127.0.0.1:1", "--helper-1", "127.0.0.1:2", "--insecure")
ASKING = [("aggregate", "--value", "count"), ("evaluate", "--job", "06"), ("dataset", "seal")]
REMOTE = [
    *ASKING,
    ("budget",),
    ("dataset", "list"),
    ("job", "list"),
    ("job", "plan"),
    ("job", "show"),
    ("model", "export", "out.onnx"),
    ("task", "list"),
    ("task", "show"),
]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    with asked_site(Path(tmp_path_factory.mktemp("asked"))) as made:
        yield made


def run(*command: str) -> Result:
    return CliRunner().invoke(app, list(command), env={"COLUMNS": "200"})


def at(there: There, *command: str, scope: Scope = Scope.OPERATE, status: int = 0) -> str:
    """What a command prints that is given the URL, and exits with this status."""
    token = there.of.grant(GrantKind.TOKEN, scope)
    done = run(*command, "--url", there.url, "--token", token)
    assert done.exit_code == status, done.output + repr(done.exception)
    return done.stdout


@pytest.mark.parametrize("command", REMOTE, ids=" ".join)
def test_a_command_needs_a_folder_or_a_url_and_not_both(command: tuple[str, ...], tmp_path: Path) -> None:
    neither = run(*command)
    both = run(*command, "--data", str(tmp_path), "--url", "http://127.0.0.1:1")
    assert (neither.exit_code, both.exit_code) == (2, 2)
    assert "no ad server is named: give --data" in neither.output
    assert "two ad servers are named: give either" in both.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ASKING, ids=" ".join)
def test_beside_the_folder_a_command_that_asks_needs_helpers(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(*command, "--data", str(tmp_path), *HELPERS[:2], "--insecure")
    assert done.exit_code == 2
    assert "--helper-1" in done.output


@pytest.mark.parametrize(
    "command",
    [("task", "list"), ("task", "list", "--json"), ("task", "show", SHOP_OF.task.task_id.hex()[:9]),
     ("task", "show", SHOP_OF.task.task_id.hex(), "--json"), ("dataset", "list"),
     ("dataset", "list", "--json")],
    ids=range(6),
)  # fmt: skip
def test_what_only_looks_prints_from_elsewhere_what_it_prints_here(
    there: There, command: tuple[str, ...]
) -> None:
    here = run(*command, "--data", str(there.of.folder))
    assert here.exit_code == 0, here.output
    assert at(there, *command, scope=Scope.READ) == here.stdout


def test_what_a_task_measures_is_read_by_name(there: There) -> None:
    shown = run("task", "show", SHOP_OF.task.task_id.hex(), "--data", str(there.of.folder)).stdout
    rows = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in shown.splitlines())
    assert {name: said for name, said in rows.items() if name.startswith(("value ", "key "))} == {
        "value count": "1 in each report",
        "value click": "0 to 1",
        "value purchase": "-5 to 100 (numbers outside are clipped); buckets from -5, 0, 1, 20, 50",
        "key campaign": "any word or number",
        "key place": "3 categories: seattle, oslo, lima",
        "key language": "numbers 0 to 3",
    }
    assert rows["min_cell_count"] == "1"
    assert "measurement" not in rows
    assert "{" not in shown


def test_several_tasks_are_to_be_named_from_elsewhere_too(there: There) -> None:
    token = there.of.grant(GrantKind.TOKEN, Scope.READ)
    done = run("task", "show", "--url", there.url, "--token", token)
    assert isinstance(done.exception, JobRefused)
    assert done.exception.reason is JobReason.UNKNOWN_TASK


def test_a_dataset_is_measured_by_the_command_and_read_again(there: There, tmp_path: Path) -> None:
    # A missing folder is made, as by every command that writes a file
    domain, out = tmp_path / "domain.json", tmp_path / "missing" / "out.csv"
    domain.write_text('{"campaign": {"first": 0, "last": 2}}')
    asked = ["aggregate", "--value", "click", "--mean", "purchase", "--group-by", "campaign"]
    asked += ["--dataset", SHOP[:8]]
    asked += ["--domain", str(domain), "--epsilon", "0.1", "--task", SHOP_OF.task.task_id.hex()[:6]]
    with there.charging(1):
        result = json.loads(at(there, *asked, "--out", str(out), "--json"))
    assert [row["group"]["campaign"] for row in result["rows"]][:3] == ["0", "1", "2"]
    assert "mean of purchase" in result["statistics"]
    assert out.read_text().startswith("campaign")
    with there.charging(0):
        again = json.loads(at(there, "aggregate", "--again", result["query_id"], "--json", scope=Scope.READ))
        table = at(there, "aggregate", "--again", result["query_id"])
    assert again["rows"] == result["rows"]
    assert result["query_id"] in table


def test_a_task_stands_for_its_only_dataset(there: There) -> None:
    shop, other = SHOP_OF.task.task_id.hex()[:6], OF.of.task.task_id.hex()[:6]
    found = json.loads(at(there, "aggregate", "--value", "click", "--task", shop, "--plan", "--json"))
    by_dataset = ["aggregate", "--value", "click", "--dataset", SHOP, "--plan", "--json"]
    assert found == json.loads(at(there, *by_dataset))
    token = there.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    of_both = ["aggregate", "--value", "click", "--task", other, "--dataset", SHOP]
    refused = run(*of_both, "--url", there.url, "--token", token)
    assert isinstance(refused.exception, JobRefused)
    assert "belongs to another task" in str(refused.exception)


def test_means_and_quantiles_of_a_kept_answer_cost_nothing(there: There) -> None:
    derived = ["--mean", "purchase", "--quantile", "purchase:0.5"]
    with there.charging(1):
        first = json.loads(at(there, "aggregate", *derived, "--dataset", SHOP, "--epsilon", "0.1", "--json"))
    asked = ["aggregate", "--again", first["query_id"]]
    with there.charging(0):
        plain = at(there, *asked, scope=Scope.READ)
        again = json.loads(at(there, *asked, *derived, "--json", scope=Scope.READ))
        table = at(there, *asked, *derived, scope=Scope.READ)
    assert again == first
    assert "mean of purchase" in table
    assert "quantile 0.5 of purchase" in table
    # Only the sums and the histogram are kept: a person who misses the others is told how to get them
    assert "mean of purchase" not in plain
    assert "add --mean VALUE or --quantile VALUE:SHARE" in plain
    assert "add --mean VALUE" not in table


@pytest.mark.parametrize(
    "new", [("--value", "click"), ("--group-by", "place"), ("--epsilon", "1"), ("--query-id", "e1" * 16)]
)
def test_a_kept_answer_is_not_shown_for_another_query(there: There, new: tuple[str, ...]) -> None:
    before = there.of.client.server.aggregate(values=["count"], dataset=SHOP, epsilon=0.1)
    token = there.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    with there.charging(0):
        done = run("aggregate", "--again", before.query_id, *new, "--url", there.url, "--token", token)
    assert done.exit_code == 2
    assert f"which {new[0]} cannot change" in " ".join(done.output.replace("│", " ").split())


def test_groups_of_an_earlier_answer_are_named_by_a_file_of_words(there: There, tmp_path: Path) -> None:
    measurement = SHOP_OF.task.measurement
    assert measurement is not None
    [campaign] = (key for key in measurement.keys if key.name == "campaign")
    codes, words = tmp_path / "codes.json", tmp_path / "words.json"
    codes.write_text(json.dumps({"campaign": [campaign.code("Été"), campaign.code("Winter")]}))
    words.write_text(json.dumps({"campaign": ["Herbst", "Été"]}))
    asked = ["aggregate", "--value", "click", "--group-by", "campaign", "--dataset", SHOP, "--epsilon", "0.1"]
    with there.charging(1):
        first = json.loads(at(there, *asked, "--domain", str(codes), "--json"))
    again = ["aggregate", "--again", first["query_id"], "--json"]
    with there.charging(0):
        named = json.loads(at(there, *again, "--domain", str(words), scope=Scope.READ))
    expected = [str(campaign.code("Winter")), "Été"]
    assert {row["group"]["campaign"] for row in named["rows"]} >= {*expected}
    assert [row["click"] for row in named["rows"]] == [row["click"] for row in first["rows"]]


def test_a_key_is_known_by_the_name_of_its_column(there: There) -> None:
    asked = ["aggregate", "--value", "click", "--group-by", "Plàce", "--where", "Language=1"]
    with there.charging(1):
        result = json.loads(at(there, *asked, "--dataset", SHOP[:8], "--epsilon", "0.1", "--json"))
    assert [row["group"] for row in result["rows"]][:2] == [{"place": "seattle"}, {"place": "oslo"}]


def test_a_mean_may_be_over_the_reports_that_another_value_counts(there: There) -> None:
    asked = ["aggregate", "--mean", "purchase:click", "--dataset", SHOP[:8], "--epsilon", "0.1"]
    with there.charging(1):
        result = json.loads(at(there, *asked, "--json"))
    [row], [mean] = result["rows"], result["statistics"]["mean of purchase over click"]
    assert [column["name"] for column in result["columns"]] == ["purchase", "click"]
    assert mean["value"] == pytest.approx(row["purchase"]["value"] / row["click"]["value"])


def test_a_value_is_known_by_the_name_of_its_column_in_means_and_quantiles_too(there: There) -> None:
    asked = ["aggregate", "--value", "purchase", "--mean", "Púrchase:Click", "--quantile", "Purchase:0.5"]
    with there.charging(1):
        result = json.loads(at(there, *asked, "--dataset", SHOP[:8], "--epsilon", "0.1", "--json"))
    assert [column["name"] for column in result["columns"]][:2] == ["purchase", "click"]
    assert {*result["statistics"]} == {"mean of purchase over click", "quantile 0.5 of purchase"}


@pytest.mark.parametrize("mean", ["purchase:clicks", "purchse", "purchase::", ":click"])
def test_a_mean_of_what_is_not_declared_is_refused_before_it_is_charged(there: There, mean: str) -> None:
    token = there.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    with there.charging(0):
        done = run("aggregate", "--mean", mean, "--dataset", SHOP, "--url", there.url, "--token", token)
    assert isinstance(done.exception, JobRefused)
    assert "has count, click, purchase" in str(done.exception)
    assert ("did you mean 'purchase'?" in str(done.exception)) == (mean == "purchse")
    assert ("did you mean 'click'?" in str(done.exception)) == (mean == "purchase:clicks")


def with_gaps(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ad server's task declare `paid`, and the count of the reports that have it."""
    values = ({"name": "paid", "low": 0, "high": 9}, {"name": "paid_filled", "low": 0, "high": 1})
    gaps = measuring_world({"min_cell_count": 1, "values": values})
    known = there.of.client.server.task(SHOP_OF.task.task_id.hex())
    changed = replace(known, stored=replace(known.stored, bundle=gaps.bundle))
    monkeypatch.setattr(RemoteAdServer, "task", lambda *_: changed)


@pytest.mark.parametrize("is_again", [False, True])
def test_a_mean_of_a_value_with_gaps_says_over_which_reports_before_it_is_charged(
    there: There, monkeypatch: pytest.MonkeyPatch, is_again: bool
) -> None:
    before = there.of.client.server.aggregate(values=["count"], dataset=SHOP, epsilon=0.1)
    with_gaps(there, monkeypatch)
    token = there.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    of = ("--again", before.query_id) if is_again else ("--dataset", SHOP)
    with there.charging(0):
        done = run("aggregate", "--mean", "Paid", *of, "--url", there.url, "--token", token)
    assert done.exit_code == 2
    assert "'Paid:paid_filled'" in done.output
    assert "'Paid:count'" in done.output


def test_a_quantile_of_a_value_with_gaps_says_over_which_reports_before_it_is_charged(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gaps(there, monkeypatch)
    token = there.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    asked = ("aggregate", "--quantile", "paid:0.5", "--dataset", SHOP)
    with there.charging(0):
        done = run(*asked, "--url", there.url, "--token", token)
    assert done.exit_code == 2
    assert "--quantile is of 'paid'" in done.output
    assert "'paid:paid_filled'" in done.output


def test_a_quantile_may_be_over_the_reports_that_another_value_counts(there: There) -> None:
    asked = ["aggregate", "--quantile", "purchase:click:0.5", "--dataset", SHOP, "--epsilon", "0.1"]
    with there.charging(1):
        result = json.loads(at(there, *asked, "--json"))
    assert [column["name"] for column in result["columns"]][:2] == ["click", "count"]
    assert {*result["statistics"]} == {"quantile 0.5 of purchase over click"}


def test_a_mean_of_a_value_that_is_not_declared_is_not_advised_to_be_over_another_count(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gaps(there, monkeypatch)
    token = there.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    done = run("aggregate", "--mean", "sold", "--dataset", SHOP, "--url", there.url, "--token", token)
    assert isinstance(done.exception, JobRefused)
    assert "sold:" not in done.output


@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize("mean", ["paid:paid_filled", "Paid:Paid filled"])
def test_a_mean_over_the_reports_that_have_a_value_lies_in_its_range(
    there: There, monkeypatch: pytest.MonkeyPatch, mean: str, is_again: bool
) -> None:
    summed = there.of.client.server.aggregate(values=["count", "click"], dataset=SHOP, epsilon=0.1)
    columns = (
        replace(column, name=name, value=name, report_range=(0, 1))
        for column, name in zip(summed.columns, ("paid", "paid_filled"), strict=True)
    )
    result = replace(summed, columns=tuple(columns))
    with_gaps(there, monkeypatch)
    monkeypatch.setattr(RemoteAdServer, "aggregate", lambda *_, **__: result)
    monkeypatch.setattr(RemoteAdServer, "repeat_aggregate", lambda *_: result)
    of = ("--again", result.query_id) if is_again else ("--dataset", SHOP)
    [[found]] = json.loads(at(there, "aggregate", "--mean", mean, *of, "--json"))["statistics"].values()
    # The reports are four for each click
    assert found["value"] > 3
    assert found["high"] == 1


def test_what_a_query_costs_and_how_wide_it_will_be_is_said_and_not_charged(there: There) -> None:
    asked = ["aggregate", "--value", "purchase", "--mean", "purchase", "--group-by", "place", "--roll-up"]
    asked += ["--epsilon", "0.1", "--dataset", SHOP]
    with there.charging(0):
        told = at(there, *asked, "--plan", scope=Scope.READ)
        plan = json.loads(at(there, *asked, "--plan", "--json", scope=Scope.READ))
        local = there.of.client.forecast_aggregate(
            "purchase", "count", group_by="place", roll_up=True, epsilon=0.1, dataset=SHOP
        )
    assert told.rstrip() == repr(local)
    with there.charging(1):
        result = json.loads(at(there, *asked, "--json"))
    assert (plan["epsilon"], plan["records"]) == (result["epsilon"], result["records"])
    assert [level["keys"] for level in plan["levels"]] == [[], ["place"]]
    assert [{*level["half_widths"]} for level in plan["levels"]] == [{"purchase", "count"}] * 2
    assert plan["levels"][0]["half_widths"]["purchase"] > plan["levels"][0]["half_widths"]["count"]
    assert (plan["discovery_epsilon"], plan["found_from"], plan["are_at_most"]) == (None, None, False)


def test_a_plan_says_that_the_budget_does_not_hold_the_query_and_what_fits(there: There) -> None:
    client = there.of.client
    [budget] = client.server.budgets(dataset=SHOP)
    left, most = budget.next_epsilon, budget.ad_server.budget
    assert left is not None
    assert left < 0.97 * most
    asked = ("aggregate", "--value", "count", "--dataset", SHOP, "--plan")
    refused = at(there, *asked, "--epsilon", f"{most}", scope=Scope.READ, status=1).splitlines()
    fits = f"which leaves {left:g}: ask for epsilon {left:g} "
    assert refused[0].startswith("this query is refused: epsilon ")
    assert fits in refused[0]
    assert refused[1:] == [
        *repr(client.forecast_aggregate("count", epsilon=most, dataset=SHOP)).splitlines()[1:]
    ]
    plan = json.loads(at(there, *asked, "--epsilon", f"{most}", "--json", scope=Scope.READ, status=1))
    assert fits in plan["refusal"]
    assert "refused" not in at(there, *asked, "--epsilon", f"{left}", scope=Scope.READ)
    evaluation = ("evaluate", "--dataset", SHOP, "--plan", "--epsilon")
    assert "this evaluation is refused" in at(there, *evaluation, f"{most}", scope=Scope.READ, status=1)
    assert "refused" not in at(there, *evaluation, f"{left}", scope=Scope.READ)
    assert fits in client.forecast_evaluation(epsilon=most, dataset=SHOP).refusal
    assert not client.forecast_evaluation(epsilon=left, dataset=SHOP).refusal


def test_a_query_that_would_be_refused_has_no_plan(there: There) -> None:
    token = there.of.grant(GrantKind.TOKEN, Scope.READ)
    at_url = ("--plan", "--dataset", SHOP, "--url", there.url, "--token", token)
    for wrong in (["--value", "purchases"], ["--value", "count", "--where", "place=nowhere"], []):
        assert isinstance(run("aggregate", *wrong, *at_url).exception, (JobRefused, InvalidTask))
    done = run("aggregate", "--again", "ab", *at_url)
    assert done.exit_code == 2
    assert "--plan cannot change" in " ".join(done.output.split())


def test_buckets_are_printed_of_the_histograms_that_were_asked_for_and_files_have_all(
    there: There, tmp_path: Path
) -> None:
    asked = ["aggregate", "--value", "count", "--quantile", "purchase:0.5", "--group-by", "place"]
    asked += ["--dataset", SHOP, "--epsilon", "0.1"]
    written = tmp_path / "r.csv"
    with there.charging(2):
        told = at(there, *asked, "--query-id", "d1" * 16, "--out", str(written))
        # The same value under the name that its column may have
        named = at(there, *asked, "--histogram", "Purchase")
    assert "quantile 0.5 of purchase" in told.splitlines()[0]
    assert "purchase[" not in told
    assert "purchase[" not in named
    # One line a bucket and group, below the groups
    heads = [line.split() for line in named.splitlines() if line.startswith("place ")]
    assert heads[1:] == [["place", "purchase", "reports"]]
    assert "purchase[0..0] value" in written.read_text().splitlines()[0]
    with there.charging(0):
        again = at(there, "aggregate", "--again", "d1" * 16)
    assert [line.split() for line in again.splitlines() if line.startswith("place ")] == [
        ["place", "count"], ["place", "purchase", "reports"],
    ]  # fmt: skip


def test_the_command_with_the_same_id_is_charged_once(there: There) -> None:
    asked = ["aggregate", "--value", "click", "--dataset", SHOP, "--epsilon", "0.1", "--query-id", "e0" * 16]
    with there.charging(1):
        first, second = (json.loads(at(there, *asked, "--json")) for _ in range(2))
    assert first == second
    assert first["query_id"] == "e0" * 16


def test_a_command_that_loses_its_answer_says_under_which_id_to_ask(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> Any:
        raise HelperUnavailable("the helper is away")

    monkeypatch.setattr(there.of.client.server, "aggregate", gone)
    monkeypatch.setattr(retrying, "BRIEF", retrying.ONCE)
    token = there.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    done = run("aggregate", "--value", "count", "--dataset", SHOP, "--url", there.url, "--token", token)
    assert isinstance(done.exception, HelperUnavailable)
    assert "with query id" in str(done.exception)
    assert token not in done.output + str(done.exception)


def test_a_model_is_evaluated_by_the_command(there: There, tmp_path: Path) -> None:
    model, plot = tmp_path / "model.onnx", tmp_path / "curves.png"
    model.write_bytes(ENCODED_MODEL)
    asked = ["evaluate", "--model", str(model), "--bins", "10", "--epsilon", "0.1", "--dataset", DATASET]
    with there.charging(1):
        result = json.loads(at(there, *asked, "--plot", str(plot), "--json"))
    assert plot.stat().st_size > 10_000
    with there.charging(0):
        again = at(there, "evaluate", "--again", result["query_id"], "--json", scope=Scope.READ)
    assert json.loads(again) == result


def test_what_an_evaluation_costs_and_how_wide_it_will_be_is_said_before_it_is_charged(
    there: There, tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(ENCODED_MODEL)
    asked = ["evaluate", "--bins", "10", "--epsilon", "0.1", "--dataset", DATASET]
    with there.charging(0):
        plan = at(there, *asked, "--plan", scope=Scope.READ)
        rare = json.loads(at(there, *asked, "--plan", "--base-rate", "0.02", "--json", scope=Scope.READ))
    assert "over 40 reports, 99 % intervals of sampling and noise are about: loss" in plan
    assert "0.1 of the records have label 1" in plan
    assert (rare["base_rate"], rare["num_bins"], {*rare["metrics"]}) == (
        0.02,
        10,
        {"loss", "accuracy", "roc_auc", "mean_over_rate"},
    )
    token = there.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    with there.charging(1):
        done = run(*asked, "--model", str(model), "--json", "--url", there.url, "--token", token)
    assert done.stderr.startswith(plan.rstrip())
    assert json.loads(done.stdout)["epsilon"] == rare["epsilon"]


def test_an_evaluation_is_asked_also_where_only_its_forecast_is_odd(there: There, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(ENCODED_MODEL)
    asked = ["evaluate", "--bins", "10", "--epsilon", "0.1", "--dataset", DATASET, "--base-rate", "2"]
    token = there.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    reach = ("--url", there.url, "--token", token)
    with there.charging(0):
        refused = run(*asked, "--plan", *reach)
    assert isinstance(refused.exception, InvalidTask)
    with there.charging(1):
        done = run(*asked, "--model", str(model), "--json", *reach)
    assert json.loads(done.stdout)["metrics"]
    assert done.stderr.startswith("no forecast: base_rate is 2, but must be above 0 and below 1")


@pytest.mark.parametrize("weights", ModelWeights)
def test_a_jobs_weights_are_evaluated_where_they_are(
    there: There, monkeypatch: pytest.MonkeyPatch, weights: ModelWeights
) -> None:
    jobs: list[tuple[str, ModelWeights]] = []

    def trained(job: str, weights: ModelWeights) -> bytes:
        jobs.append((job, weights))
        return ENCODED_MODEL

    server: Any = there.of.client.server
    monkeypatch.setattr(server.measuring, "_export_job", trained)
    with there.charging(1):
        asked = ["evaluate", "--job", "06", "--weights", weights]
        told = at(there, *asked, "--bins", "10", "--epsilon", "0.1", "--dataset", DATASET)
    assert jobs == [("06", weights)]
    assert "roc_auc" in told


def test_a_model_has_no_best_weights(there: There) -> None:
    with there.charging(0), pytest.raises(InvalidTask, match="a model has its own"):
        there.of.client.server.evaluate(ENCODED_MODEL, weights=ModelWeights.BEST)


def test_a_dataset_is_sealed_by_the_command(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = dataset_of(measuring_world(), 12), list[Any]()

    def seal(task: str = "", **settings: Any) -> Dataset:
        asked.append((task, settings))
        return made

    monkeypatch.setattr(there.of.client.server, "seal", seal)
    told = at(there, "dataset", "seal", "--task", "ab", "--max-reports", "7", "--allow-small")
    assert asked == [("ab", {"max_reports": 7, "allow_small": True})]
    assert (made.dataset_id or b"").hex() in told
    assert json.loads(at(there, "dataset", "seal", "--json"))["admitted"] == 12


@pytest.mark.parametrize(
    "command",
    [("aggregate", "--value", "click", "--dataset", SHOP), ("evaluate", "--job", "06", "--dataset", DATASET),
     ("dataset", "seal")],
    ids=["aggregate", "evaluate", "seal"],
)  # fmt: skip
def test_a_token_that_reads_spends_nothing_by_a_command(there: There, command: tuple[str, ...]) -> None:
    token = there.of.grant(GrantKind.TOKEN, Scope.READ)
    with there.charging(0):
        done = run(*command, "--url", there.url, "--token", token)
    assert isinstance(done.exception, JobRefused)
    assert "read_only" in str(done.exception)
    assert token not in done.output + str(done.exception)


def test_a_dataset_of_another_task_is_not_measured(there: There) -> None:
    token = there.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    asked = ["aggregate", "--value", "count", "--dataset", SHOP, "--task", OF.of.task.task_id.hex()]
    with there.charging(0):
        done = run(*asked, "--url", there.url, "--token", token)
    assert isinstance(done.exception, JobRefused)
    assert done.exception.reason is JobReason.UNKNOWN_DATASET
