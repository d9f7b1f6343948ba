"""Devices and an ad server that is away for a while."""

from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from browser_sim.devices.answers import AnswerStore
from browser_sim.devices.device_data import Holdings
from browser_sim.devices.run import Churn, FleetSettings, Told, _DeviceFleet
from browser_sim.endpoint import Protection
from maskedlark.errors import HelperUnavailable
from maskedlark.federated.populations import Population
from tests.browser_sim.devices.test_devices import WORLD, body
from tests.builders import NOW

DEVICES = 3


class AdServer:
    """Serves a round and takes reports, but answers the requests at `away` with an error, or not at all."""

    def __init__(self, away: range, status: int | None = None) -> None:
        self.asked = 0
        self.taken: list[bytes] = []
        self._away, self._status = away, status

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        if self.asked - 1 in self._away:
            if self._status is None:
                raise httpx.ConnectError("away")
            return httpx.Response(self._status)
        if request.method == "GET":
            return httpx.Response(200, content=body())
        self.taken.append(request.content)
        return httpx.Response(201)


class RoundThatEnds(AdServer):
    """Takes each report once; its round is over before the copies come."""

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and request.content in self.taken:
            return httpx.Response(409, json={"reason": "round_over"})
        return super().answer(request)


def run(adserver: AdServer, store: Path, churn: Churn | None = None) -> Told:
    settings = FleetSettings(
        bundle=WORLD.bundle,
        site="http://ads.example",
        protection=Protection(insecure=True),
        holdings=Holdings(
            features=np.zeros((DEVICES, 4), np.uint8),
            labels=np.zeros(DEVICES, np.int64),
            population=Population(members=tuple(np.arange(one, one + 1) for one in range(DEVICES))),
        ),
        seed=1,
        rounds=1,
        churn=churn or Churn(),
    )
    with AnswerStore(store) as answers, httpx.Client(transport=httpx.MockTransport(adserver.answer)) as http:
        fleet = _DeviceFleet(settings, answers, http, clock=lambda: NOW, pause=lambda _: None)
        return fleet.run()


@pytest.mark.parametrize("status", [None, 503])
@pytest.mark.parametrize("away", [range(5), range(1, 6)])
def test_devices_wait_for_an_ad_server_that_is_away_for_a_while(
    tmp_path: Path, away: range, status: int | None
) -> None:
    adserver = AdServer(away, status)
    told = run(adserver, tmp_path / "a")
    assert told.outcomes == {"answered": DEVICES}
    assert (told.devices, told.examples) == (DEVICES, DEVICES)
    assert len(set(adserver.taken)) == DEVICES


@pytest.mark.parametrize(("status", "asked"), [(None, 8), (503, 8), (404, 1)])
def test_devices_do_not_wait_forever_nor_where_they_are_refused(
    tmp_path: Path, status: int | None, asked: int
) -> None:
    adserver = AdServer(range(10**6), status)
    with pytest.raises(HelperUnavailable):
        run(adserver, tmp_path / "a")
    assert adserver.asked == asked


def test_a_report_that_was_taken_is_answered_though_its_copy_comes_late(tmp_path: Path) -> None:
    told = run(RoundThatEnds(range(0)), tmp_path / "a", Churn(twice=1.0))
    assert told.sentence == f"{DEVICES} devices saw 1 round: {DEVICES} answered"


def test_what_became_of_answers_is_told_in_words() -> None:
    told = Told(devices=3, rounds=2)
    assert told.sentence == "3 devices saw 2 rounds: no answers"
    assert replace(told, rounds=0).sentence.startswith("3 devices saw no round: `adserver job list`")
    told.outcomes.update({"answered": 4, "late": 1})
    told.reasons["round_over"] += 1
    assert told.sentence == "3 devices saw 2 rounds: 4 answered, 1 late (1 round over)"
