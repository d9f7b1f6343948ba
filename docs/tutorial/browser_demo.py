"""`make demo-browser`: a newspaper, a shop and a vault in your browser, and what each party sees of a report.

Two helpers and an ad server run on loopback, each a process with a folder of its own. Your browser seals; the
vault sends through this demo, which passes the sealed bytes on and, since it holds both helpers' folders,
also opens them to show what each helper will see. No party of a real deployment can do that. 3,000
simulated people report as well, or there would be no crowd to hide in; as many again for each measurement.
"""

import argparse
import json
import time
import webbrowser
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import compress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from typing import Any, Final

import httpx
import numpy as np
from rich.console import Console
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

import browser_sim
from adserver import Client
from adserver.ingest.cors_headers import HEADERS
from adserver.ingest.http_server import HttpServer
from adserver.peers.retrying import Backoff
from adserver.store.database import open_store
from adserver.store.datasets import Dataset, DatasetStore
from docs.tutorial.fleet import ORIGIN, Fleet
from helper.trust.keys import HelperKeys
from maskedlark.canonical import decode
from maskedlark.errors import HelperUnavailable, MaskedLarkError
from maskedlark.numbers.field import reconstruct, to_signed
from maskedlark.privacy.accounting import Epsilons
from maskedlark.randomness import system_randomness
from maskedlark.reports.input_shares import InputShares, decode_shares
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.reports.sealing import OpeningKey, share_info
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.upload import Report, Sealer
from maskedlark.rpc.wire import decode_report, report_to_message
from maskedlark.runtime.signals import ending_on_sigterm, wait_for
from protos import report_pb2

DIST: Final = Path(browser_sim.__file__).parent / "js" / "dist"
STAGE: Final = Path(__file__).parent / "stage"
CAMPAIGNS: Final = ("shoes", "radios", "lamps")
PRICES: Final = (60, 110, 35)
POPULATION: Final = tuple(
    {"features": (row % 24, row % 10, row % 12, row % 5), "keys": ((0, 0, 0, 0, 0, 1, 1, 1, 2, 2)[row % 10],)}
    for row in range(120)
)
"""The newspaper's public table of readers: the hour at which they read, and three numbers more; a campaign.

Fake reports draw each of their columns from it. So do readers here, or a helper could tell which is which.
"""
CROWD: Final = 3_000
FEATURES: Final = 4
BUDGET: Final = 8.0
LIFETIME_S: Final = 20
DELAY_S: Final = 3
_MEASUREMENT: Final[dict[str, Any]] = {
    "min_cell_count": 20,
    "values": [{"name": "spent", "low": 0, "high": 200}],
    "keys": [{"name": "campaign", "size": 3, "categories": CAMPAIGNS}],
}
_TABLE: Final = np.array([(*row["features"], *row["keys"]) for row in POPULATION])
_AWAY: Final = "Ask again; if it stays away, end the demo with Ctrl-C in its terminal and start it again"
# Someone waits at the page; without `tell`, each attempt would be a line in the terminal.
_BACKOFF: Final = Backoff(give_up_after_s=5.0, tell=lambda _cause: None)
_OUT = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the demo, and no party of a real deployment, knows of a report."""

    campaign: int
    spent: int
    is_simulated: bool


@dataclass(kw_only=True)
class Stage:
    """The running demo: its parties, and what passed so far.

    Attributes:
        sent: Reports by their id, also those that the ad server did not accept.
        accepted: How many reports the ad server has accepted: simulated ones (True), and browsers' (False).
        sealed: How many of them a dataset has taken.
        last: What each party sees of the last report of any browser.
        result: What the last measurement gave.
    """

    fleet: Fleet
    task: str
    bundle: TaskBundle
    keys: tuple[tuple[OpeningKey, ...], tuple[OpeningKey, ...]]
    helpers: tuple[str, str]
    sent: dict[bytes, Sent] = field(default_factory=dict)
    accepted: Counter[bool] = field(default_factory=Counter)
    sealed: Counter[bool] = field(default_factory=Counter)
    last: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    dice: np.random.Generator = field(default_factory=np.random.default_rng)
    lock: Lock = field(default_factory=Lock)
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _measurement: Future[dict[str, Any]] | None = None

    @property
    def intake(self) -> str:
        """The ad server's HTTP address."""
        return f"http://{self.fleet.http}"

    @property
    def waiting(self) -> dict[str, int]:
        """How many reports wait for the next measurement, by who sent them."""
        with self.lock:
            return _by_sender({one: self.accepted[one] - self.sealed[one] for one in (True, False)})

    def ask(self, method: str, path: str, content: bytes = b"") -> httpx.Response:
        """Send a request to the ad server.

        Raises:
            HelperUnavailable: it does not answer.
        """
        try:
            return httpx.request(method, f"{self.intake}{path}", content=content, timeout=60)
        except httpx.HTTPError as error:
            raise HelperUnavailable(f"the ad server at {self.intake} does not answer: {error}") from None

    def pass_on(self, body: bytes) -> httpx.Response:
        """Pass one sealed report on to the ad server, and keep what the parties see of it."""
        report = decode_report(body)
        seen = self._look_at(report)  # before it is sent: a measurement may take it at once
        answer = self.ask("POST", "/v1/reports", body)
        if answer.status_code == httpx.codes.CREATED:
            with self.lock:
                self.accepted[False] += 1
                self.last = seen
        return answer

    def _look_at(self, report: Report) -> dict[str, Any]:
        shares = [self._opened(report, role) for role in (0, 1)]
        masks = reconstruct(shares[0].mask_shares, shares[1].mask_shares)[0]
        values = [_values(one) for one in shares]
        campaign = int(shares[0].measured.keys[0, 0]) if shares[0].measured else 0
        spent = int(to_signed(reconstruct(values[0], values[1]))[1])
        self.sent[report.report_id] = Sent(campaign=campaign, spent=spent, is_simulated=False)
        return {
            "report_id": report.report_id.hex(),
            "time_bucket": report.time_bucket,
            "ciphertexts": [share.ciphertext.hex() for share in report.shares],
            "is_fake": not masks.any(),
            "spent": spent,
            "campaign": CAMPAIGNS[campaign],
            "features": shares[0].features[0].tolist(),
            "helpers": [
                {
                    "masks": sorted(
                        (label, str(mask))
                        for label, mask in zip(
                            one.labels[0].tolist(), one.mask_shares[0].tolist(), strict=True
                        )
                    ),
                    "value": str(values[role][1]),
                }
                for role, one in enumerate(shares)
            ],
        }

    def _opened(self, report: Report, role: int) -> InputShares:
        share, task = report.shares[role], self.bundle.task
        info = share_info(
            task_id=task.task_id,
            report_id=report.report_id,
            time_bucket=report.time_bucket,
            role=role,
            key_id=share.key_id,
        )
        key = next(key for key in self.keys[role] if key.key_id == share.key_id)
        plaintext = np.frombuffer(key.open(share.ciphertext, info), np.uint8)[None, :]
        ids = [report.report_id]
        return decode_shares(task, plaintext, role=role, report_ids=ids, task_id=task.task_id).shares

    def fill(self) -> None:
        """Have as many simulated people see an ad as are missing to a crowd; some of them buy.

        Raises:
            HelperUnavailable: the ad server does not take their reports.
        """
        sealer, batch = Sealer(self.bundle, now=time.time()), report_pb2.ReportBatch()
        for _ in range(CROWD - self.waiting["simulated"]):
            drawn = self.dice.integers(0, len(_TABLE), FEATURES + 1)
            *features, campaign = _TABLE[drawn, range(FEATURES + 1)].tolist()
            buys = bool(self.dice.random() < (0.2, 0.35, 0.5)[campaign])
            spent = PRICES[campaign] * buys
            example = Example(
                features=np.array(features, np.uint8),
                label=int(buys),
                measured=MeasuredValues(keys=(campaign,), values=(spent,)),
            )
            report = sealer.report(example, unix_s=time.time(), randomness=system_randomness)
            batch.reports.append(report_to_message(report))
            self.sent[report.report_id] = Sent(campaign=campaign, spent=spent, is_simulated=True)
        if not batch.reports:
            return
        answer = self.ask("POST", "/v1/reports/batch", batch.SerializeToString())
        if not answer.is_success:
            raise HelperUnavailable(f"the ad server does not take reports: it answers {answer.status_code}")
        with self.lock:
            self.accepted[True] += len(batch.reports)

    def measure(self) -> dict[str, Any]:
        """Measure the reports that wait; asked during a measurement, return that one's result.

        Raises:
            MaskedLarkError: why there is none.
        """
        with self.lock:
            if self._measurement is None or self._measurement.done():
                self._measurement = self.worker.submit(self._measure)
                self.worker.submit(self.fill)  # if it fails, the next measurement says so
            measurement = self._measurement
        return measurement.result()

    def _measure(self) -> dict[str, Any]:
        try:
            self.fill()
            with Client(
                data=self.fleet.data("adserver"), helpers=self.helpers, insecure=True, backoff=_BACKOFF
            ) as client:
                dataset = client.seal(self.task, progress=False)
                measured = self._reports_of(dataset)
                result = client.aggregate("spent", group_by=["campaign"], epsilon=1.0, dataset=dataset)
        except HelperUnavailable as error:
            away = HelperUnavailable(f"{self._by_role(str(error))}. {_AWAY}")
            _tell(away)
            raise away from None
        except MaskedLarkError as error:
            _tell(error)
            raise
        cells = []
        for number, name in enumerate(CAMPAIGNS):
            estimate = result.estimate("spent", name)
            told = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
            truth = sum(one.spent for one in measured if one.campaign == number)
            cells.append({"campaign": name, "truth": truth, **told})
        task = self.bundle.task
        self.result = {
            "number": self.result["number"] + 1 if self.result else 1,
            "cells": cells,
            "reports": _by_sender(Counter(one.is_simulated for one in measured)),
            "spent": asdict(result.dataset_spent),
            "budget": asdict(Epsilons(ad_server=task.epsilon, colluding=task.collusion_epsilon)),
            "delta": task.delta,
        }
        return self.result

    def _by_role(self, message: str) -> str:
        """Give the helpers that a message names by their addresses the names that the page has for them."""
        for role, address in enumerate(self.helpers):
            message = message.replace(f"helper at {address}", f"Helper {role} at {address}")
        return message

    def _reports_of(self, dataset: Dataset) -> list[Sent]:
        """Return the reports that a new dataset holds; those that it took no longer wait."""
        engine = open_store(self.fleet.data("adserver"), None)
        try:
            store = DatasetStore(engine)
            taken = [self.sent[report_id.tobytes()] for report_id in store.report_ids(dataset)]
            is_chosen = store.is_chosen(dataset)
        finally:
            engine.dispose()
        with self.lock:
            self.sealed.update(one.is_simulated for one in taken)
        return list(compress(taken, is_chosen))


@contextmanager
def running(folder: Path, *, fake_rate: float = 0.2) -> Iterator[tuple[Stage, dict[str, str]]]:
    """The parties, and the four sites; the addresses of the sites by name.

    Args:
        folder: Each party's data folder lies in here.
        fake_rate: The share of reports that are fake.
    """
    with Fleet(folder=folder) as fleet, ExitStack() as sites:
        measurement = folder / "measurement.json"
        measurement.write_text(json.dumps(_MEASUREMENT))
        task = fleet.adserver(
            "task", "create", "--name", "shop", "--origin", ORIGIN, "--classes", "2", "--default-label", "0",
            "--num-features", str(FEATURES), "--min-batch-size", "100", "--clip-norm", "1",
            "--epsilon", str(BUDGET), "--measurement", str(measurement), "--fake-report-rate", str(fake_rate),
            "--proof",
        ).strip()  # fmt: skip
        bundle = decode(TaskBundle, httpx.get(f"http://{fleet.http}/v1/tasks/{task}").content)
        now = time.time()
        first, second = (HelperKeys.read(fleet.data(f"helper-{role}")).opening_keys(now) for role in (0, 1))
        helpers = [(folder / f"helper-{role}.address").read_text() for role in (0, 1)]
        stage = Stage(
            fleet=fleet, task=task, bundle=bundle, keys=(first, second), helpers=(helpers[0], helpers[1])
        )
        sites.callback(stage.worker.shutdown, cancel_futures=True)
        origins: dict[str, str] = {}
        for name in ("stage", "publisher", "shop", "vault"):
            server = HttpServer(_site(name, stage, origins), "127.0.0.1:0", None)
            sites.callback(server.stop)
            origins[name] = f"http://localhost:{server.port}"
        stage.fill()
        yield stage, origins


def _site(name: str, stage: Stage, origins: dict[str, str]) -> Starlette:
    trusted = [helper.verify_key.hex() for helper in stage.bundle.task.helpers]

    async def page(request: Request) -> Response:
        file = STAGE / (request.path_params.get("file") or f"{name}.html")
        return FileResponse(file) if file.parent == STAGE and file.is_file() else Response(status_code=404)

    async def script(request: Request) -> Response:
        file = DIST / request.path_params["file"]
        return FileResponse(file) if file.parent == DIST and file.is_file() else Response(status_code=404)

    async def settings(_request: Request) -> Response:
        options = {
            "bundle": f"{origins['vault']}/bundle",
            "trustedHelpers": trusted,
            "consent": True,
            "maxDelayS": DELAY_S,
            "population": POPULATION,
        }
        vault = f"{origins['vault']}/vault.html"
        told = {"vault": vault, "origins": origins, "lifetimeS": LIFETIME_S, "options": options}
        return JSONResponse(told)

    async def vault_settings(_request: Request) -> Response:
        pages = [origins["publisher"], origins["shop"]]
        told = {"intake": origins["vault"], "origins": pages, "trustedHelpers": trusted}
        return JSONResponse({**told, "leastDelayS": DELAY_S})

    async def bundle(_request: Request) -> Response:
        answer = await run_in_threadpool(stage.ask, "GET", f"/v1/tasks/{stage.task}")
        return Response(answer.content, answer.status_code, headers=dict(HEADERS))

    async def report(request: Request) -> Response:
        answer = await run_in_threadpool(stage.pass_on, await request.body())
        return Response(answer.content, answer.status_code, headers=dict(HEADERS))

    async def state(_request: Request) -> Response:
        told = {"waiting": stage.waiting, "crowd": CROWD, "last": stage.last, "result": stage.result}
        return JSONResponse(told)

    async def sites(_request: Request) -> Response:
        pages = {one: f"{origins[one]}/{one}.html" for one in ("publisher", "shop")}
        return JSONResponse({**pages, "lifetimeS": LIFETIME_S, "delayS": DELAY_S})

    async def measure(_request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(stage.measure))

    async def refuse(_request: Request, error: Exception) -> Response:
        status = 503 if isinstance(error, HelperUnavailable) else 409
        return JSONResponse({"message": str(error)}, status, headers=dict(HEADERS))

    routes = {
        "stage": [
            Route("/api/state", state),
            Route("/api/sites", sites),
            Route("/api/measure", measure, methods=["POST"]),
        ],
        "publisher": [Route("/settings", settings)],
        "shop": [Route("/settings", settings)],
        "vault": [
            Route("/vault-settings", vault_settings),
            Route("/bundle", bundle),
            Route("/v1/reports", report, methods=["POST"]),
        ],
    }
    common = [Route("/dist/{file}", script), Route("/", page), Route("/{file}", page)]
    return Starlette(routes=[*routes[name], *common], exception_handlers={MaskedLarkError: refuse})


def _tell(error: MaskedLarkError) -> None:
    _OUT.print(f"the measurement failed: {error}", markup=False, highlight=False, soft_wrap=True)


def _by_sender(counts: Mapping[bool, int]) -> dict[str, int]:
    return {"simulated": counts[True], "browsers": counts[False]}


def _values(shares: InputShares) -> Any:
    """The value shares of one report: its count, and what was spent."""
    return shares.measured.value_shares[0] if shares.measured else np.zeros(2, np.uint64)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-open", action="store_true", help="print the address, and open no browser")
    given = parser.parse_args()
    try:
        with ending_on_sigterm(), TemporaryDirectory(prefix="maskedlark-demo-") as folder:
            _OUT.print("two helpers and an ad server are starting")
            _OUT.print("the first start on a machine compiles loops, once: up to two minutes")
            with running(Path(folder)) as (_stage, origins):
                _OUT.print(f"open [bold]{origins['stage']}[/bold] (Ctrl-C ends everything)")
                if not given.no_open:
                    webbrowser.open(origins["stage"])
                wait_for(Event())
    except KeyboardInterrupt:
        _OUT.print("stopped")


if __name__ == "__main__":
    main()
