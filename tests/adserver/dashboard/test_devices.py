"""Pages of a task whose devices train: no report waits, and no dataset is sealed."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import onnxruntime
import pytest
from playwright.sync_api import Browser

from adserver.ingest.http_server import HttpServer
from adserver.records.access import GrantKind
from adserver.records.federated_plan import FederatedPlan
from adserver.store.tasks import TaskStore
from maskedlark.federated.local_job import LocalUpdate
from maskedlark.releases.instructions import update_job
from tests.adserver.painted import painted
from tests.adserver.visits import Shown
from tests.builders import NOW
from tests.local_jobs import LocalJobs
from tests.maskedlark.federated.federated_world import MODEL, dp_fedavg
from tests.maskedlark.federated.local_world import DRAWS_ID, LINE_ID, PARAMETERS, WIDTHS, draws_job, line_job
from tests.patience import HANGS_S
from tests.update_builders import update_world

OF = update_world(name="visits at home")
ID = OF.task.task_id.hex()
PATHS = (
    "/", "/intake", f"/tasks/{ID}", "/budgets", "/jobs", f"/jobs/{LINE_ID.hex()}", f"/jobs/{DRAWS_ID.hex()}"
)  # fmt: skip


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Shown]:
    of = painted(Path(tmp_path_factory.mktemp("painted")) / "adserver")
    TaskStore(of.engine).add(OF.bundle, created_at=NOW)
    strategy = dp_fedavg(noise_multiplier=7.25)
    job = update_job(job_id=b"u" * 16, task_id=OF.task.task_id, strategy=strategy, model=MODEL)
    devices = OF.task.min_batch_size
    of.jobs.submit(
        FederatedPlan(task=OF.task, federated=job, window_s=1.0, least_devices=devices), name="at home"
    )
    alone = LocalJobs(of.engine)
    for local in (line_job(), draws_job()):
        alone.submit(local)
    with of.door() as door:
        server = HttpServer(door, "127.0.0.1:0", None, headers=())
        try:
            server.wait_until_started()
            yield Shown(of=of, browser=browser, server=server)
        finally:
            server.stop()
    of.close()


@pytest.fixture(scope="module")
def pages(shown: Shown) -> dict[str, str]:
    headers = {"authorization": f"Bearer {shown.of.grant(GrantKind.TOKEN)}"}
    with httpx.Client(base_url=shown.origin, headers=headers, timeout=HANGS_S) as client:
        return {path: client.get(path).text for path in PATHS}


@pytest.mark.parametrize("path", ["/", "/intake"])
def test_no_report_is_waited_for(pages: dict[str, str], path: str) -> None:
    row = next(one for one in pages[path].split("<tr>") if "visits at home" in one)
    assert "no report waits" in row
    assert "that a dataset needs" not in row


def test_its_own_page_says_who_takes_part_and_never_to_seal(pages: dict[str, str]) -> None:
    page = pages[f"/tasks/{ID}"]
    assert "Devices in a round, at least" in page
    assert f'href="/budgets/{ID}"' in page
    assert "dataset seal" not in page


def test_a_persons_budget_goes_by_the_tasks_name(pages: dict[str, str]) -> None:
    assert f'<a href="/budgets/{ID}">visits at home</a>' in pages["/budgets"]


def test_jobs_on_devices_show_their_noise_beside_the_others(pages: dict[str, str]) -> None:
    compared = pages["/jobs"].split('id="compared"')[1]
    assert ">7.25<" in next(one for one in compared.split("<tr>") if "at home" in one)


def test_a_narrow_overview_is_not_cut(shown: Shown, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    try:
        visit = shown.visit(context)
        visit.open("/")
        assert visit.page.locator("#waiting .is-named").count() == 1
        card = "document.querySelector('#waiting')"
        assert visit.page.evaluate(f"{card}.scrollWidth - {card}.clientWidth") <= 0
    finally:
        context.close()


def test_settings_are_in_words(pages: dict[str, str]) -> None:
    page = pages[f"/tasks/{ID}"]
    assert '<th scope="row">protects a</th><td>person</td>' in page
    assert "weight of each update <b>yes</b>" in page
    assert "numbers in an update" in page
    assert not [one for one in ("num parameters", "time bucket s", "True") if one in page]


@pytest.mark.parametrize(
    ("job_id", "words"),
    [
        (LINE_ID, ("line, 3 devices in a round, without helpers", "0 of 2 rounds")),
        (DRAWS_ID, ("draw-and-discard, 4 instances, without helpers", "0.5 of each ")),
    ],
)
def test_a_job_without_helpers_shows_its_updates_and_what_one_costs(
    pages: dict[str, str], job_id: bytes, words: tuple[str, ...]
) -> None:
    page = pages[f"/jobs/{job_id.hex()}"]
    for wanted in ("accepted from devices", "added by each device", "Its model is kept", *words):
        assert wanted in page
    assert not [one for one in ("model.onnx", "No round is done yet", "Figures of the rounds") if one in page]
    assert f'href="/jobs/{job_id.hex()}"' in pages["/jobs"]


def test_the_model_of_draws_is_downloaded_from_the_first_update_on(
    shown: Shown, browser: Browser, pages: dict[str, str]
) -> None:
    path = f"/jobs/{DRAWS_ID.hex()}"
    assert "ONNX file" not in pages[path]
    body = LocalUpdate(update_id=bytes(16), position=0, vector=np.zeros(PARAMETERS, np.int64)).encode()
    assert LocalJobs(shown.of.engine).intake().take(DRAWS_ID, body)
    context = browser.new_context()
    try:
        visit = shown.visit(context)
        visit.open(path)
        visit.page.get_by_role("link", name="ONNX file after 1 update").wait_for()
        assert visit.complaints == []
        found = visit.page.request.get(f"{shown.origin}{path}/model.onnx")
        name = f'filename="{DRAWS_ID.hex()[:12]}-1-updates.onnx"'
        assert name in found.headers["content-disposition"]
        session = onnxruntime.InferenceSession(found.body())
    finally:
        context.close()
    assert session.get_inputs()[0].shape[1] == WIDTHS[0]


def test_a_job_on_devices_has_only_figures_of_its_own(shown: Shown) -> None:
    job = next(one for one in shown.of.jobs.all() if one.name == "at home")
    headers = {"authorization": f"Bearer {shown.of.grant(GrantKind.TOKEN)}"}
    page = httpx.get(f"{shown.origin}/jobs/{job.job_id.hex()}", headers=headers, timeout=HANGS_S).text
    assert "Norm of the noisy mean update" in page
    assert ">Update norm</th>" in page
    assert not [one for one in ("Noise / signal", "Gradient norm", "Learning rate") if one in page]


def test_open_jobs_without_helpers_are_at_work_and_have_no_task(pages: dict[str, str]) -> None:
    assert pages["/jobs"].count('<td><span class="dim">without helpers</span></td>') == 2
    tile = pages["/"].split("Jobs at work")[1]
    assert tile.startswith('</span><span class="big">4</span>')
