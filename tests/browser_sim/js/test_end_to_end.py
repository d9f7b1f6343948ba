"""Chromium's reports train the same model as Python's: over TLS, from three origins, through real helpers."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from playwright.sync_api import Browser

from docs.tutorial.fleet import Fleet
from maskedlark.canonical import decode
from maskedlark.randomness import below, seeded, system_randomness
from maskedlark.reports.report import Example
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.upload import Sealer
from maskedlark.rpc.wire import report_to_message
from tests.browser_sim.js.chromium import chromium_path
from tests.browser_sim.js.vault_sites import Sites, rows_kept, server_tls, three_sites
from tests.fleet_commands import create_model, create_task, seal, submit
from tests.patience import HANGS_S

pytestmark = [pytest.mark.slow, pytest.mark.long]
IMPRESSIONS: Final = 300
FEATURES: Final = 6
FAKE_RATE: Final = 0.25
DAY_S: Final = 86_400
CONVERTS_WITHIN_S: Final = 150
PATIENCE_S: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Ads:
    """What people saw, and what came of it."""

    features: NDArray[np.uint8]
    converts: NDArray[np.bool_]

    @property
    def labels(self) -> list[int]:
        return [int(one) for one in self.converts]


def make_ads() -> Ads:
    """Features that tell something about the conversion."""
    dice = seeded(18, "ads")
    features = below(256, IMPRESSIONS * FEATURES, dice).astype(np.uint8).reshape(IMPRESSIONS, FEATURES)
    features[:, 0] = np.arange(IMPRESSIONS) % 251
    converts = features[:, 1].astype(int) + below(128, IMPRESSIONS, dice).astype(int) > 190
    return Ads(features=features, converts=converts)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    chromium_path()
    with Fleet(folder=tmp_path_factory.mktemp("chromium"), is_no_noise=True, is_tls=True) as running:
        yield running


def new_task(fleet: Fleet, name: str) -> str:
    return create_task(
        fleet,
        name,
        f"--classes 2 --default-label 0 --num-features {FEATURES} --min-batch-size 50 --no-noise"
        f" --epsilon 1 --clip-norm 1 --fake-report-rate {FAKE_RATE}",
    )


def trained(fleet: Fleet, task: str, model: Path) -> tuple[int, list[bytes]]:
    """How many reports the dataset has, and the weights that five rounds make, bit for bit."""
    dataset = seal(fleet, task)
    assert dataset["admitted"] == dataset["received"]
    job = submit(
        fleet,
        f"--dataset {dataset['dataset_id']} --model {model} --loss binary_cross_entropy_with_logits"
        " --rounds 5 --learning-rate 0.5 --wait",
    )
    assert job["state"] == "done", job["cause"]
    out = fleet.folder / f"{task[:8]}.onnx"
    fleet.adserver("model", "export", "--job", job["job_id"], str(out), options=False)
    return dataset["admitted"], weights(out)


def weights(model: Path) -> list[bytes]:
    """The parameters of a model, without the names and ids that its file also holds."""
    return [numpy_helper.to_array(one).tobytes() for one in onnx.load(str(model)).graph.initializer]


def live(sites: Sites, fleet: Fleet, task: str, browser: Browser, ads: Ads) -> None:
    """One browser sees all the ads at the publisher's, and converts at the advertiser's."""
    url = f"https://{fleet.http}/v1/tasks/{task}"
    trusted = [one.verify_key.hex() for one in bundle_of(fleet, task).task.helpers]
    options = {"bundle": url, "trustedHelpers": trusted, "consent": True, "maxDelayS": 1}
    context = browser.new_context(ignore_https_errors=True)
    page = context.new_page()
    assert sites.open(page, sites.publisher, **options)
    page.evaluate(
        """async ([ads, convertingDays, conversionOrigins]) => {
          for (const [number, [features, converts]] of ads.entries()) {
            const lifetimeDays = converts ? convertingDays : 2e-5;
            await lark.saveImpression({
              features: Uint8Array.from(features), matchValue: number, lifetimeDays, conversionOrigins,
            });
          }
        }""",
        [
            list(zip(ads.features.tolist(), ads.converts.tolist(), strict=True)),
            CONVERTS_WITHIN_S / DAY_S,
            [sites.advertiser.origin],
        ],
    )
    assert sites.open(page, sites.advertiser, **options)
    page.evaluate(
        """async ([bought, impressionOrigins]) => {
          for (const number of bought) {
            await lark.measureConversion({
              label: 1, matchValues: [number], lookbackDays: 1, impressionOrigins,
            });
          }
        }""",
        [np.flatnonzero(ads.converts).tolist(), [sites.publisher.origin]],
    )
    frame = next(one for one in page.frames if one.url.startswith(sites.vault.origin))
    deadline = time.monotonic() + PATIENCE_S
    while rows_kept(frame):
        assert time.monotonic() < deadline, "the vault still holds reports"
        page.wait_for_timeout(200)
    context.close()


def bundle_of(fleet: Fleet, task: str) -> TaskBundle:
    answer = httpx.get(f"https://{fleet.http}/v1/tasks/{task}", verify=False, timeout=HANGS_S)  # noqa: S501 # the test's own server
    return decode(TaskBundle, answer.content)


def upload(fleet: Fleet, task: str, examples: Sequence[Example]) -> None:
    """The same examples, made and sent by Python."""
    sealer = Sealer(bundle_of(fleet, task), now=time.time())
    with httpx.Client(verify=False, timeout=HANGS_S) as client:  # noqa: S501
        for example in examples:
            report = sealer.report(example, unix_s=time.time(), randomness=system_randomness)
            body = report_to_message(report).SerializeToString()
            answer = client.post(f"https://{fleet.http}/v1/reports", content=body)
            assert answer.status_code == httpx.codes.CREATED


def test_a_model_trained_on_chromiums_reports_is_the_one_trained_on_pythons(
    fleet: Fleet, browser: Browser, tmp_path: Path
) -> None:
    ads, model = make_ads(), tmp_path / "untrained.onnx"
    create_model(fleet, model, (FEATURES, 4, 1), seed=2)
    task = new_task(fleet, "chromium")
    tls = server_tls(fleet.data("adserver") / "tls.crt", fleet.data("adserver") / "tls.key")
    trusted = [one.verify_key.hex() for one in bundle_of(fleet, task).task.helpers]
    with ExitStack() as running:
        sites = running.enter_context(three_sites(intake=f"https://{fleet.http}", trusted=trusted, tls=tls))
        live(sites, fleet, task, browser, ads)
        assert_private(sites)
    admitted, by_chromium = trained(fleet, task, model)
    fakes = admitted - IMPRESSIONS
    assert 0 < fakes < IMPRESSIONS  # about a third as many as real ones

    real = [Example(features=row, label=label) for row, label in zip(ads.features, ads.labels, strict=True)]
    fake = [Example(features=np.zeros(FEATURES, np.uint8), label=None) for _ in range(fakes)]
    other = new_task(fleet, "python")
    upload(fleet, other, [*real, *fake])
    count, by_python = trained(fleet, other, model)
    assert count == admitted
    assert by_python == by_chromium
    assert by_python != weights(model)


def assert_private(sites: Sites) -> None:
    """No site but the vault's was asked for anything by the vault, and none with a cookie."""
    assert not [seen for seen in sites.seen if "cookie" in {name.lower() for name in seen.headers}]
    asked: list[Any] = [seen.path for site in (sites.publisher, sites.advertiser) for seen in site.seen]
    assert {path.split("?")[0] for path in asked} <= {"/", "/dist/stub.js", "/favicon.ico"}
