"""Every page in Chromium, in both themes: legible to all, strict, and from this server alone."""

from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, BrowserContext

from adserver.admin.access import LOGIN_PATH
from adserver.admin.queries import show_query
from adserver.client.local import LocalAdServer
from adserver.dashboard.pages import PAGES
from adserver.records.access import Scope
from adserver.records.defaults import MOST_JOB_NAME
from adserver.records.exported_model import ExportedModel, InputForm, ModelWeights
from adserver.records.training_plan import TrainingPlan
from adserver.training.cost import job_epsilons
from adserver.views.query import means_in, print_groups, quantiles_in, write_result
from maskedlark.privacy.accounting import spent
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.terminal.budget_view import next_line
from tests.adserver.dashboard.conftest import UNBROKEN
from tests.adserver.painted import SHOP_OF
from tests.adserver.visits import PATHS, Shown, Visit

AXE: Final = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
RUN: Final = "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"


def violations(visit: Visit) -> list[str]:
    """What axe finds; it is run as the browser's own code, so that the page's policy stays as it is."""
    visit.page.evaluate(AXE)
    found: list[dict[str, Any]] = visit.page.evaluate(RUN)
    return [f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"]]


def test_every_page_is_visited() -> None:
    heads = {page.path.split("/")[1] for page in PAGES}
    assert {path.split("/")[1].split("?")[0] for path in PATHS.values()} == heads
    details = {page.path.split("/")[1] for page in PAGES if "{" in page.path}
    assert details <= {path.split("/")[1] for path in PATHS.values() if path.count("/") == 2}


@pytest.mark.parametrize("name", PATHS)
def test_a_page_is_accessible_strict_and_alone(shown: Shown, browser: Browser, theme: Any, name: str) -> None:
    context = browser.new_context(color_scheme=theme)
    try:
        visit = shown.visit(context)
        answer = visit.open(PATHS[name])
        assert answer.status == (404 if name == "what is not there" else 200)
        assert visit.page.locator("h1").count() == 1
        assert violations(visit) == []
        assert [one for one in visit.complaints if "404" not in one] == []
        assert {one.url.split("/")[2] for one in visit.requests} == {visit.origin.split("/")[2]}
    finally:
        context.close()


def test_the_page_of_who_is_not_logged_in_is_accessible_and_has_a_style(
    shown: Shown, browser: Browser, theme: Any
) -> None:
    context = browser.new_context(color_scheme=theme)
    try:
        visit = Visit(page=context.new_page(), of=shown.of, origin=shown.origin)
        visit.page.on("console", lambda one: visit.complaints.append(one.text))
        assert visit.open(LOGIN_PATH).status == 401
        assert violations(visit) == []
        # The policy lets its style through
        assert [one for one in visit.complaints if "401" not in one] == []
        colour = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour == {"light": "rgb(246, 246, 243)", "dark": "rgb(18, 21, 23)"}[theme]
    finally:
        context.close()


def test_a_browser_is_told_why_it_is_not_logged_in(shown: Shown, context: BrowserContext) -> None:
    visit = shown.visit(context)

    def told() -> str:
        return visit.page.locator("main p").first.inner_text()

    visit.page.get_by_role("button", name="Log out").click()
    visit.page.wait_for_url("**/login?out")
    assert told() == "You are logged out."
    assert "adserver quickstart up NAME --dashboard" in visit.page.inner_text("main")
    assert visit.open("/jobs").status == 401
    assert told().startswith("The session of this browser has ended: ")
    assert told().endswith(" Log in again.")
    assert visit.open(f"{LOGIN_PATH}?code=wrong").status == 401
    assert told().startswith("This login link does not work: it was used before")
    context.clear_cookies()
    visit.open("/jobs")
    assert told() == "This browser is not logged in."


def test_a_used_link_leads_a_browser_that_is_logged_in_to_the_overview(visit: Visit) -> None:
    assert visit.open(f"{LOGIN_PATH}?code=used").status == 200
    assert visit.page.locator("h1").inner_text() == "Overview"


def test_without_javascript_every_page_is_whole(shown: Shown, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    try:
        visit = shown.visit(context)
        for name in ("overview", "intake", "jobs", "budgets", "query"):
            visit.open(PATHS[name])
            assert visit.page.locator("table tbody tr").count() >= 1
            assert not visit.page.locator("#stale").is_visible()
        visit.open(PATHS["job"])
        assert visit.page.locator("#curves tbody tr").count() == 38
        assert not visit.page.locator("#charts").is_visible()
    finally:
        context.close()


def test_a_query_has_the_table_that_commands_print_and_its_histograms_folded(
    visit: Visit, capsys: pytest.CaptureFixture[str]
) -> None:
    visit.open(PATHS["query"])
    shown = show_query(visit.of.site, "a1").result
    assert shown is not None
    result = shown.value()
    statistics = (*means_in(result), *quantiles_in(result))
    print_groups(result, statistics, is_all_shown=False, without={"purchase"})
    printed = capsys.readouterr().out.split()
    table = visit.page.locator("#groups")
    heads = table.locator("th").all_text_contents()
    assert heads[-4:] == [one.name for one in statistics]
    assert heads[-2:] == ["quantile 0.5 of purchase", "quantile 0.9 of purchase"]
    assert table.locator("tbody tr").count() == len(result.rows)
    cells = [*heads, *table.locator("td").all_text_contents()]
    assert sorted(" ".join(cells).split()) == sorted(printed)
    # A bucket's name has dots, and a filter's word its capitals
    histogram = visit.page.locator("details", has_text="Histogram of purchase")
    assert not histogram.locator("table").is_visible()
    buckets = histogram.locator("tbody tr td:nth-child(2)")
    assert buckets.all_text_contents()[:2] == ["-5 to -1", "0 to 0"]
    assert visit.page.locator("h1").text_content() == (
        "Count, click, purchase by place where campaign = Lima Days"
    )
    told = visit.page.locator("#answer > p.dim").all_text_contents()
    assert any(
        one.startswith("99 % intervals; epsilon ") and "sums are clipped: a report counts " in one
        for one in told
    )
    assert visit.page.evaluate("document.documentElement.scrollHeight") < 1_000


def test_a_querys_groups_are_downloaded_as_the_file_that_commands_write(visit: Visit, tmp_path: Path) -> None:
    visit.open(PATHS["query"])
    shown = show_query(visit.of.site, "a1").result
    assert shown is not None
    result = shown.value()
    write_result(result, tmp_path / "groups.csv", (*means_in(result), *quantiles_in(result)))
    with visit.page.expect_download() as begun:
        visit.page.get_by_role("link", name="All groups as a CSV file").click()
    assert begun.value.suggested_filename == f"query-{'a1' * 6}.csv"
    assert Path(begun.value.path()).read_bytes() == (tmp_path / "groups.csv").read_bytes()
    for named, said in (
        ("a2" * 16, f"adserver aggregate --again {'a2' * 6} --out groups.csv"),
        ("a3" * 16, "a discovery has no groups"),
        ("a4" * 16, "this id belongs to a release of kind evaluation"),
        ("ff" * 16, "no query"),
        ("no-id", "expected hexadecimal digits"),
    ):
        lacking = visit.page.request.get(f"{visit.origin}/queries/{named}/groups.csv")
        assert lacking.status == 404, named
        assert said in lacking.text()


def test_a_task_lists_the_values_and_keys_that_a_query_can_name(visit: Visit) -> None:
    visit.open(PATHS["task that measures"])
    rows = visit.page.locator(".facts tr")
    listed = dict(
        zip(rows.locator("th").all_text_contents(), rows.locator("td").all_text_contents(), strict=True)
    )
    assert listed["value purchase"].startswith("-5 to 100 (numbers outside are clipped); buckets from -5, 0")
    assert listed["key place"] == "3 categories: seattle, oslo, lima"
    assert "measurement" not in listed


def test_curves_are_drawn_from_the_table(visit: Visit) -> None:
    visit.open(PATHS["job"])
    visit.page.wait_for_selector(".uplot canvas")
    assert visit.page.locator(".uplot").count() == 2
    rounds = visit.page.evaluate("uPlot && document.querySelectorAll('#curves tbody tr').length")
    assert rounds == 38


def test_a_narrow_page_scrolls_down_only(shown: Shown, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    try:
        visit = shown.visit(context)
        for path in PATHS.values():
            visit.open(path)
            wide = visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, path
    finally:
        context.close()


CUT: Final = """() => [...document.querySelectorAll("main *")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== "visible")
    .map((one) => `${one.tagName} ${one.id}: ${one.scrollWidth} of ${one.clientWidth}`)"""
TEXT_WIDTHS: Final = """(cells) => cells.map((cell) => {
    const style = getComputedStyle(cell);
    return cell.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
})"""


def test_a_wide_page_cuts_no_table(shown: Shown, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        visit = shown.visit(context)
        for path in PATHS.values():
            visit.open(path)
            # Rounds scroll down in their own box
            assert [one for one in visit.page.evaluate(CUT) if "rounds" not in one] == [], path
    finally:
        context.close()


def test_a_narrow_page_cuts_no_table(shown: Shown, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    try:
        visit = shown.visit(context)
        for path in PATHS.values():
            visit.open(path)
            assert visit.page.evaluate(CUT) == [], path
            assert violations(visit) == [], path
        visit.open(PATHS["tasks"])
        names = visit.page.locator("#tasks tbody tr:first-child td").evaluate_all(
            "(cells) => cells.map((cell) => cell.dataset.label)"
        )
        assert names == ["Task", "Origin", "Protects", "Budget ε", "Waiting", "In datasets", "Ends (UTC)"]
    finally:
        context.close()


def _without_tag(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name != "if-none-match"}


def test_a_live_page_that_did_not_change_keeps_its_rows(visit: Visit) -> None:
    visit.page.route("**/tasks", lambda route: route.continue_(headers=_without_tag(route.request.headers)))
    visit.open(PATHS["tasks"])
    visit.page.evaluate("document.querySelector('#tasks tbody tr').kept = true")
    with visit.page.expect_response(lambda one: one.url.endswith("/tasks") and one.status == 200):
        visit.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # asks at once
    visit.page.wait_for_timeout(100)
    assert visit.page.evaluate("document.querySelector('#tasks tbody tr').kept") is True


def test_a_narrow_page_of_budgets_has_its_epsilons_in_sight(shown: Shown, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    try:
        visit = shown.visit(context)
        visit.open(PATHS["budgets"])
        cells = visit.page.locator(
            "#budgets tbody td.num:nth-child(4), #budgets tbody td.num:nth-child(6)"
        ).all()
        boxes = [cell.bounding_box() for cell in cells]
        assert boxes
        assert all(box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
    finally:
        context.close()


def test_jobs_have_names_and_are_side_by_side(visit: Visit) -> None:
    visit.open(PATHS["jobs"])
    rows = visit.page.locator("#compared tbody tr")
    named = rows.filter(has_text="two <layers>")
    assert named.count() == 1
    assert "32 & 16 hidden" in named.inner_text()
    assert rows.count() == visit.page.locator("#jobs .card").first.locator("tbody tr").count()
    visit.open(PATHS["job"])
    assert "two <layers>" in visit.page.locator("h1").inner_text()
    assert "two <layers>" in visit.page.title()


def test_the_loss_by_which_weights_are_chosen_is_next_to_the_plain_one(visit: Visit) -> None:
    visit.open(PATHS["jobs"])
    heads = visit.page.locator("#compared thead th").all_text_contents()
    assert heads[heads.index("Loss") + 1] == "Calibrated loss"
    assert heads[heads.index("Best loss") + 1] == "Best calibrated loss"
    rows = visit.page.locator("#compared tbody tr").filter(has_text="two <layers>")
    of_job = dict(zip(heads, rows.locator("td").all_text_contents(), strict=True))
    assert float(of_job["Calibrated loss"]) < float(of_job["Loss"])
    assert float(of_job["Best calibrated loss"]) < float(of_job["Best loss"])
    visit.open(PATHS["job"])
    tile = visit.page.locator("#tiles .tile", has_text="Loss, once calibrated")
    assert tile.locator(".big").inner_text() == of_job["Calibrated loss"]
    assert f"without calibration: loss {of_job['Loss']}" in tile.inner_text()
    heads = visit.page.locator("#curves thead th").all_text_contents()
    assert heads[1:3] == ["Loss", "Calibrated loss"]
    visit.page.wait_for_selector(".uplot canvas")
    assert "Calibrated loss" in visit.page.locator("[data-chart=loss] .u-legend").inner_text()


@pytest.mark.parametrize(
    ("page", "where", "name"),
    [
        ("jobs", "#jobs .card:first-of-type tbody a", "two <layers>"),
        ("budget", "#uses tbody a", "two <layers>"),
        ("budget of the shop", "#uses tbody a", "Count by campaign"),
        ("queries", "#queries tbody td:first-child a", "Count by campaign"),
        ("datasets", "#datasets tbody td:nth-child(2) a", "shop purchases"),
    ],
)
def test_names_come_before_ids(visit: Visit, page: str, where: str, name: str) -> None:
    visit.open(PATHS[page])
    assert name in visit.page.locator(where).all_inner_texts()


def test_a_budget_is_named_by_its_task(visit: Visit) -> None:
    visit.open(PATHS["budget"])
    assert visit.page.locator("h1").inner_text().startswith("Budget of a dataset of newsletter clicks ")


def test_a_budget_says_what_a_next_job_may_ask(visit: Visit) -> None:
    visit.open(PATHS["budget"])
    [budget] = visit.of.client.budgets(dataset=PATHS["budget"].partition("?")[0].rpartition("/")[2])
    told = visit.page.locator("#standing").inner_text()
    assert next_line(budget)[1:] in told
    assert budget.next_epsilon


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_of_jobs_has_all_of_them_side_by_side(
    of_two_datasets: Shown, browser: Browser, width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800})
    try:
        visit = of_two_datasets.visit(context)
        visit.open(PATHS["jobs"])
        assert "from the warm model" in visit.page.locator("#compared").inner_text()
        assert visit.page.evaluate(CUT) == []
        hidden = "(one) => one.scrollHeight - one.clientHeight"
        assert visit.page.locator(".scroll").evaluate(hidden) <= 1
        assert violations(visit) == []
    finally:
        context.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_names_and_notes_without_spaces_wrap(of_two_datasets: Shown, browser: Browser, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800})
    try:
        visit = of_two_datasets.visit(context)
        jobs = [f"/jobs/{job_id.hex()}" for job_id in UNBROKEN]
        for path in ("/", "/jobs", *jobs, PATHS["dataset"], PATHS["budget"]):
            visit.open(path)
            for letter, _ in UNBROKEN.values():
                is_there = letter * MOST_JOB_NAME in visit.page.inner_text("main")
                assert is_there or path in jobs, path
            assert visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
            assert visit.page.evaluate(CUT) == [], path
        visit.open("/jobs")
        # Not one letter below the other
        cells = visit.page.locator("#compared td:first-child").evaluate_all(TEXT_WIDTHS)
        assert min(cells) > 100, cells
    finally:
        context.close()


def test_a_wide_list_has_the_names_of_tasks_in_one_line(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 1280, "height": 800})
    for name in ("overview", "jobs", "budgets", "datasets", "tasks"):
        visit.open(PATHS[name])
        heights = visit.page.locator(".name", has_text="newsletter clicks").evaluate_all(
            "(all) => all.map((one) => one.offsetHeight)"
        )
        assert heights, name
        assert max(heights) < 30, name


def test_queries_in_a_list_have_both_epsilons_and_an_evaluation_names_its_model(visit: Visit) -> None:
    visit.open(PATHS["queries"])
    row = visit.page.locator("#queries tbody tr", has_text="evaluation")
    spec = visit.of.site.queries.find("a4", EvaluationSpec).spec
    assert f"Model {spec.weights_digest.hex()[:12]} in 10 score bins" in row.inner_text()
    cost = spent(spec.charges(SHOP_OF.task), SHOP_OF.task.delta)
    assert row.locator("td.num").all_inner_texts() == [f"{cost.ad_server:.3g}", f"{cost.colluding:.3g}"]


def test_settings_of_a_task_have_both_budgets_next_to_each_other(visit: Visit) -> None:
    visit.open(PATHS["task that measures"])
    names = visit.page.locator(".facts th").all_inner_texts()
    at = names.index("ε against the ad server")
    assert names[at + 1 : at + 3] == ["ε against the ad server with one helper", "δ"]
    assert "{" not in visit.page.inner_text("main")


def test_jobs_side_by_side_have_both_epsilons(visit: Visit) -> None:
    visit.open(PATHS["jobs"])
    visit.page.get_by_role("link", name="Compare these jobs side by side").click()
    heads = visit.page.locator("#compared thead th").all_text_contents()
    [job] = [one for one in visit.of.jobs.all() if one.name == "two <layers>"]
    assert isinstance(job.plan, TrainingPlan)
    spent = job_epsilons(job.plan, job.rounds_done)
    row = visit.page.locator("#compared tbody tr").filter(has_text="two <layers>").locator("td")
    row.nth(heads.index("ε spent")).get_by_text(f"{spent.ad_server:.3g}", exact=True).wait_for()
    assert row.nth(heads.index("ε with one helper")).inner_text() == f"{spent.colluding:.3g}"


def test_a_forecast_without_a_noise_takes_the_least_that_fits(visit: Visit) -> None:
    visit.open(PATHS["budget"].replace("noise_multiplier=30", "noise_multiplier="))
    forecast = visit.page.locator(".forecast")
    assert "fits" in str(forecast.get_attribute("class"))
    assert "20 rounds of all reports with noise of" in visit.page.inner_text("main")
    assert visit.page.locator("input[name=noise_multiplier]").input_value() == ""
    visit.open(PATHS["budget"].replace("noise_multiplier=30", "noise_multiplier=1"))
    assert "over" in str(forecast.get_attribute("class"))


def test_a_round_that_was_not_evaluated_has_the_figures_of_the_nearest_earlier_one(visit: Visit) -> None:
    visit.open(PATHS["job"])
    visit.page.wait_for_selector(".uplot canvas")
    losses = {one.rounds_done: one.loss for one in visit.of.jobs.history(b"\2" * 16) if one.loss is not None}
    place = visit.page.locator("[data-chart=loss] .u-over")
    box = place.bounding_box()
    assert box is not None
    seen = set[bool]()
    for part in range(1, 20):
        place.hover(position={"x": box["width"] * part / 20, "y": 50})
        pointed, loss, *_ = visit.page.locator("[data-chart=loss] .u-legend .u-value").all_inner_texts()
        evaluated = max(one for one in losses if one <= int(pointed))
        number, _, of = loss.partition(" ")
        assert float(number) == pytest.approx(losses[evaluated], abs=1e-3)
        assert of == ("" if evaluated == int(pointed) else f"(round {evaluated})")
        seen.add(of == "")
    assert seen == {True, False}


def test_charts_name_their_axes_and_show_the_last_figures(visit: Visit) -> None:
    visit.open(PATHS["job"])
    visit.page.wait_for_selector(".uplot canvas")
    legend = visit.page.locator("[data-chart=loss] .u-legend .u-series")
    told = dict(
        zip(
            legend.locator(".u-label").all_inner_texts(),
            legend.locator(".u-value").all_inner_texts(),
            strict=True,
        )
    )
    names = ["Loss (left)", "Calibrated loss (left)", "Accuracy (right)", "AUC (right)"]
    assert list(told) == ["Round", *names], told
    last = visit.of.jobs.last_evaluated(b"\2" * 16)
    assert last is not None
    assert last.loss is not None
    assert float(told["Loss (left)"]) == pytest.approx(last.loss, abs=1e-3)
    # Not that of the newest round, which was not evaluated
    assert told["Round"] == str(last.rounds_done)
    assert visit.of.jobs.get(b"\2" * 16).rounds_done > last.rounds_done
    assert f"after {last.rounds_done} rounds" in visit.page.inner_text("#tiles")
    borders = legend.locator(".u-marker").evaluate_all(
        "(all) => all.map((one) => one.style.borderColor + one.style.borderStyle)"
    )
    assert len(set(borders) - {""}) == len(names)


def test_jobs_over_several_datasets_are_side_by_side_with_a_warning(
    shown: Shown, of_two_datasets: Shown, context: BrowserContext
) -> None:
    for served, times in ((shown, 0), (of_two_datasets, 1)):
        visit = served.visit(context)
        visit.open(PATHS["jobs"])
        assert visit.page.get_by_text("These jobs are over different datasets").count() == times


def test_jobs_side_by_side_lead_to_their_pages_and_say_that_accuracy_is_uncalibrated(visit: Visit) -> None:
    visit.open(PATHS["jobs"])
    heads = visit.page.locator("#compared thead th").all_text_contents()
    assert "Accuracy" in heads
    said = visit.page.inner_text("#side-by-side")
    assert "Accuracy is uncalibrated, of the last round." in said
    # All are on one evaluation set and dataset
    assert "eval set" not in said
    visit.page.locator("#compared").get_by_role("link", name="two <layers>").click()
    visit.page.wait_for_url(f"**/jobs/{'02' * 16}")


def test_an_unknown_state_of_jobs_is_refused_with_the_known_ones(visit: Visit) -> None:
    assert visit.open("/jobs?state=bogus").status == 422
    assert "state is 'bogus': expected one of queued, running" in visit.page.inner_text("main")


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (
            "4000",
            "Reports in a round is 4000: expected at least the task's min_batch_size, 16, and at most the "
            "dataset's 40",
        ),
        ("3", "Reports in a round is 3: expected at least the task's min_batch_size, 16"),
        ("-4", "Reports in a round is -4: expected a number above 0"),
    ],
)
def test_a_refused_forecast_keeps_its_form(visit: Visit, batch: str, said: str) -> None:
    at = PATHS["budget"].replace("batch_size=", f"batch_size={batch}")
    assert visit.open(at).status == 200
    typed = {
        name: visit.page.input_value(f"[name={name}]")
        for name in ("rounds", "batch_size", "noise_multiplier")
    }
    assert typed == {"rounds": "20", "batch_size": batch, "noise_multiplier": "30"}
    assert said in visit.page.inner_text(".forecast.over")


def test_the_overview_counts_cancelled_jobs_and_lists_tasks_that_wait_for_reports(visit: Visit) -> None:
    visit.open(PATHS["overview"])
    tile = visit.page.locator("#tiles .tile", has_text="Jobs done")
    assert "2 stopped early" not in tile.inner_text()
    assert "1 stopped early, 1 cancelled" in tile.inner_text()
    # The shop's reports are all in datasets
    assert visit.page.locator("#waiting tbody tr td:first-child").all_inner_texts() == ["newsletter clicks"]


def test_a_jobs_model_is_downloaded(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def export(_self: LocalAdServer, _job: bytes, *of: object) -> ExportedModel:
        asked.append(of)
        return ExportedModel(encoded=b"a model", rounds_done=38)

    monkeypatch.setattr(LocalAdServer, "export", export)
    visit.open(PATHS["job that was refused"])
    [command] = (
        visit.page.locator("#model p", has_text="These weights are not calibrated")
        .locator("code")
        .all_inner_texts()[-1:]
    )
    assert command == f"adserver model calibrate calibrated.onnx --job {'04' * 6} --panel PANEL.npz"
    with visit.page.expect_download() as begun:
        visit.page.get_by_role("link", name="ONNX file of round 11, the last done").click()
    assert begun.value.suggested_filename == f"{'04' * 6}-round-38.onnx"
    assert Path(begun.value.path()).read_bytes() == b"a model"
    of_columns = visit.page.request.get(f"{visit.page.url}/model.onnx?takes=columns")
    assert f"{'04' * 6}-round-38-of-columns.onnx" in of_columns.headers["content-disposition"]
    assert visit.page.request.get(f"{visit.page.url}/model.onnx?weights=best").ok
    assert asked == [
        (InputForm.SCALED, ModelWeights.LATEST),
        (InputForm.COLUMNS, ModelWeights.LATEST),
        (InputForm.SCALED, ModelWeights.BEST),
    ]
    assert visit.page.request.get(f"{visit.page.url}/model.onnx?weights=worst").status == 422


def test_who_may_only_read_sees_no_button(shown: Shown, context: BrowserContext) -> None:
    visit = shown.visit(context, Scope.READ)
    visit.open(PATHS["job that was refused"])
    assert visit.page.get_by_role("button", name="Resume").count() == 0
    assert visit.page.get_by_text("adserver job resume").count() == 1
    for name in ("overview", "job", "budget", "what is not there"):
        visit.open(PATHS[name])
        assert "This browser may only look." in visit.page.inner_text("header"), name


def test_who_may_operate_is_not_said_to_only_look(visit: Visit) -> None:
    visit.open(PATHS["overview"])
    assert "may only look" not in visit.page.inner_text("header")


def test_what_is_to_be_typed_has_the_style_of_code(visit: Visit, context: BrowserContext) -> None:
    visit.open("/jobs?state=failed")
    assert visit.page.locator("td.empty code").all_inner_texts() == ["adserver job submit"]
    assert "`" not in visit.page.inner_text("main")
    visit.open("/jobs/<b>`x")
    assert visit.page.locator("main b").count() == 0
    visit.open(PATHS["what is not there"])
    assert visit.page.locator("main code").all_inner_texts() == ["adserver job list"]
    assert "`" not in visit.page.inner_text("main")


def test_a_job_that_is_done_cannot_be_cancelled_and_the_page_says_when_it_could(visit: Visit) -> None:
    visit.open(PATHS["job"])
    status, text = visit.page.evaluate(
        f"""async () => {{
            const answer = await fetch("/jobs/{"06" * 16}/cancel", {{method: "POST"}});
            return [answer.status, await answer.text()];
        }}"""
    )
    assert status == 409
    assert "a job in state done cannot be cancelled: expected one of queued, running" in text


def test_a_job_is_resumed_and_cancelled_by_its_buttons(visit: Visit) -> None:
    visit.open(PATHS["job that was refused"])
    visit.page.get_by_role("button", name="Resume").click()
    visit.page.wait_for_selector("#tiles .state.queued")
    visit.page.get_by_text("Cancel this job").click()
    visit.page.get_by_role("button", name="Cancel it").click()
    visit.page.wait_for_selector("#tiles .state.cancelled")
    assert visit.of.jobs.find("04").state == "cancelled"
