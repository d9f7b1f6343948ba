"""The life of impressions and conversions in the vault, in Chromium.

What is reported, when, and what is never told.
"""

import time
from itertools import chain, pairwise, repeat
from threading import Event
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Request

from maskedlark.canonical import encode
from maskedlark.reports.sealing import SignedKeyList
from maskedlark.reports.task import TaskBundle
from tests.browser_sim.js.scene import HOUR, WAIT_MS, open_world
from tests.browser_sim.js.sent_reports import CORS
from tests.browser_sim.js.site import Answer, Seen, Site


def row(number: int) -> list[int]:
    """Features by which an impression is known again."""
    return [number, 255 - number, 7, number // 3]


def test_a_conversion_on_another_origin_is_reported_with_its_label(scenes: Any) -> None:
    scene = scenes()
    assert scene.open()
    publisher, advertiser = scene.sites.publisher.origin, scene.sites.advertiser.origin
    scene.call(
        "saveImpression", features=row(1), matchValue=5, lifetimeDays=1, conversionOrigins=[advertiser]
    )
    assert scene.open(scene.sites.advertiser)
    conversion = {"label": 1, "matchValues": [5], "lookbackDays": 1, "impressionOrigins": [publisher]}
    assert scene.call("measureConversion", **conversion) is None
    scene.skip_days(2)
    scene.await_reports(1)
    features, labels = scene.sent.found()
    assert features.tolist() == [row(1)]
    assert labels.tolist() == [1]


def test_an_impression_that_expires_reports_the_default_label(scenes: Any) -> None:
    scene = scenes()
    scene.open()
    scene.call("saveImpression", features=row(2), matchValue=5, lifetimeDays=1e-6)
    scene.await_reports(1)
    assert scene.sent.found()[1].tolist() == [0]


def test_a_conversion_that_matches_nothing_tells_nothing_and_reports_nothing(scenes: Any) -> None:
    scene = scenes()
    scene.open()
    scene.call("saveImpression", features=row(3), matchValue=5, lifetimeDays=1)
    told = scene.call("measureConversion", label=1, matchValues=[6], lookbackDays=1)
    assert told is None
    scene.skip_days(2)
    scene.await_reports(1)
    features, labels = scene.sent.found()
    assert (features.tolist(), labels.tolist()) == ([row(3)], [0])
    assert scene.kept()["impressions"] == scene.kept()["waiting"] == 0


@pytest.mark.parametrize("conversions", [1, 2, 3, 4])
def test_the_highest_priority_counts_then_the_latest(scenes: Any, conversions: int) -> None:
    scene = scenes()
    scene.open()
    for number, priority in ((1, 0), (2, 9), (3, 9), (4, 0)):
        scene.call("saveImpression", features=row(number), matchValue=5, lifetimeDays=1, priority=priority)
    for _ in range(conversions):
        scene.call("measureConversion", label=1, matchValues=[5], lookbackDays=1)
    scene.skip_days(2)
    scene.await_reports(4)
    features, labels = scene.sent.found()
    assert sorted(features[labels == 1].tolist()) == sorted(map(row, [3, 2, 4, 1][:conversions]))
    assert max(scene.sent.times().values()) == 1


def test_fakes_are_sent_beside_real_reports_and_drawn_from_the_population(scenes: Any) -> None:
    scene = scenes(open_world(fake_report_rate=0.9))
    scene.open(population=[{"features": [9, 9, 9, 9], "keys": []}])
    scene.call("saveImpression", features=row(1), matchValue=5, lifetimeDays=1)
    scene.call("measureConversion", label=1, matchValues=[5], lookbackDays=1)
    scene.skip_days(2)
    scene.await_reports(1)
    for _ in range(WAIT_MS // 20):
        if not any(scene.kept()[name] for name in ("conversions", "waiting", "outbox")):
            break
        scene.page.wait_for_timeout(20)
    features, labels = scene.sent.found()
    assert labels.tolist().count(1) == 1
    assert np.unique(features[labels == -1], axis=0).tolist() in ([[9, 9, 9, 9]], [])


@pytest.mark.parametrize("why", ["no consent", "global privacy control"])
def test_without_consent_nothing_is_kept(scenes: Any, why: str) -> None:
    scene = scenes()
    if why == "global privacy control":
        scene.page.add_init_script(
            "Object.defineProperty(navigator, 'globalPrivacyControl', { value: true })"
        )
    assert scene.open(consent=why != "no consent") is False
    scene.call("saveImpression", features=row(1), matchValue=5, lifetimeDays=1)
    scene.call("measureConversion", label=1, matchValues=[5], lookbackDays=1)
    assert set(scene.kept().values()) == {0}


def test_privacy_control_switched_on_later_ends_what_is_kept(scenes: Any) -> None:
    scene = scenes()
    scene.open()
    scene.vault.evaluate(
        "() => void Object.defineProperty(navigator, 'globalPrivacyControl', { value: true })"
    )
    scene.call("saveImpression", features=row(1), matchValue=5, lifetimeDays=1)
    scene.call("measureConversion", label=1, matchValues=[5], lookbackDays=1)
    assert set(scene.kept().values()) == {0}


def test_withdrawing_purges_everything(scenes: Any) -> None:
    scene = scenes()
    scene.open(maxDelayS=30 * 86_400)
    for number in range(5):
        scene.call("saveImpression", features=row(number), matchValue=number, lifetimeDays=1)
    scene.call("measureConversion", label=1, matchValues=[0], lookbackDays=1)
    assert sum(scene.kept().values()) > 0
    scene.call("withdraw")
    assert set(scene.kept().values()) == {0}
    assert not scene.sent.reports


def test_a_person_reports_no_more_often_than_the_task_allows(scenes: Any) -> None:
    scene = scenes(open_world(unit="user", reports_per_user=2))
    scene.open()
    for number in range(5):
        scene.call("saveImpression", features=row(number), matchValue=5, lifetimeDays=1e-6)
    scene.await_reports(2)
    for _ in range(WAIT_MS // 20):
        if scene.kept()["impressions"] == 0:
            break
        scene.page.wait_for_timeout(20)
    assert scene.kept()["waiting"] == 0
    assert len(scene.sent.reports) == 2


def test_no_page_lifts_the_cap_of_a_person(scenes: Any) -> None:
    scene = scenes(open_world(unit="user", reports_per_user=2))
    for _ in range(3):  # withdrawn and opened again: what was sent is out
        scene.open(cap=None)
        for number in range(3):
            scene.call("saveImpression", features=row(number), matchValue=5, lifetimeDays=1)
        scene.skip_days(2)
        scene.call("withdraw")
        scene.call("withdraw")  # what is withdrawn already keeps its count too
    assert len(scene.sent.reports) == 2


def test_what_one_page_withdraws_no_other_page_of_its_origin_goes_on_with(scenes: Any) -> None:
    scene = scenes()
    scene.open()
    other = scene.page.context.new_page()
    trusted = [one.verify_key.hex() for one in scene.sent.of.task.helpers]
    options = {"bundle": f"{scene.host.origin}/bundle", "trustedHelpers": trusted, "consent": True}
    assert scene.sites.open(other, scene.sites.publisher, **options)
    other.evaluate("() => lark.withdraw()")
    with pytest.raises(Exception, match="Refused"):
        scene.call("saveImpression", features=row(1), matchValue=5, lifetimeDays=1)
    assert set(scene.kept().values()) == {0}


def test_what_is_withdrawn_while_reports_are_sent_is_not_sent(scenes: Any) -> None:
    is_withdrawn = Event()

    def slow(_seen: Seen) -> str:
        assert is_withdrawn.wait(WAIT_MS / 1000)
        return "answer"

    scene = scenes(disturb=slow)
    scene.open()
    for number in range(5):
        scene.call("saveImpression", features=row(number), matchValue=5, lifetimeDays=1)
    scene.vault.evaluate("() => { const now = Date.now; Date.now = () => now() + 2 * 86_400_000; }")
    scene.vault.evaluate("() => void window.engine.then((engine) => engine.run())")
    scene.await_reports(1)
    scene.call("withdraw")
    is_withdrawn.set()
    scene.turn()
    assert len(scene.sent.reports) == 1


def test_a_task_whose_host_is_gone_keeps_no_other_task_waiting(scenes: Any) -> None:
    scene = scenes()
    of = open_world(name="gone", keys=scene.sent.of.keys)
    soon = int(time.time()) + 24 * HOUR
    north, south = (
        SignedKeyList.sign(keys.signing, (keys.opening.public(),), not_after=soon) for keys in of.keys
    )
    bundle = TaskBundle(task=of.task, signatures=of.bundle.signatures, key_lists=(north, south))
    answers = chain([Answer(body=encode(bundle), headers=CORS)], repeat(Answer(status=503, headers=CORS)))
    left_s: list[float] = []

    with Site({}, handler=lambda _: next(answers)) as gone:

        def note(request: Request) -> None:
            if request.url.startswith(gone.origin):
                left_s.append(request.timing["startTime"] / 1000)

        scene.page.context.on("requestfinished", note)
        assert scene.open(bundle=f"{gone.origin}/bundle")
        scene.call("saveImpression", features=row(1), matchValue=5, lifetimeDays=1.5)
        assert scene.open()
        scene.call("saveImpression", features=row(2), matchValue=5, lifetimeDays=1.5)
        scene.skip_days(2)
        scene.await_reports(1)
        scene.page.wait_for_timeout(1500)
    assert scene.sent.found()[0].tolist() == [row(2)]
    assert scene.kept()["waiting"] == 1  # nothing is lost
    again = left_s[1:]
    assert again
    assert all(later - sooner >= 1 for sooner, later in pairwise(again))


def test_a_bundle_without_end_is_refused(scenes: Any) -> None:
    scene = scenes()
    with (
        Site({}, handler=lambda _seen: Answer(body=b"[" * 10**6, headers=CORS)) as host,
        pytest.raises(Exception, match="InvalidTask"),
    ):
        scene.open(bundle=f"{host.origin}/bundle")


def test_the_same_bytes_are_sent_until_they_are_answered(scenes: Any) -> None:
    answers = iter(
        [None, Answer(status=503, headers={"retry-after": "1", "access-control-allow-origin": "*"})]
    )
    scene = scenes(disturb=lambda _seen: next(answers, "answer"))
    scene.open()
    scene.call("saveImpression", features=row(1), matchValue=5, lifetimeDays=1e-6)
    for _ in range(WAIT_MS // 20):
        if len(scene.sent.bodies) == 3 and scene.kept()["outbox"] == 0:
            break
        scene.page.wait_for_timeout(20)
    assert len(scene.sent.bodies) == 3
    assert len(set(scene.sent.bodies)) == 1


def test_a_rejected_report_is_not_sent_again(scenes: Any) -> None:
    refused = Answer(status=422, headers={"access-control-allow-origin": "*"})
    scene = scenes(disturb=lambda _seen: refused)
    scene.open()
    scene.call("saveImpression", features=row(1), matchValue=5, lifetimeDays=1e-6)
    scene.await_reports(1)
    for _ in range(WAIT_MS // 20):
        if scene.kept()["outbox"] == 0:
            break
        scene.page.wait_for_timeout(20)
    assert len(scene.sent.bodies) == 1


def test_uploads_carry_no_cookie_no_referrer_and_need_no_preflight(scenes: Any) -> None:
    scene = scenes()
    scene.open()
    scene.page.context.add_cookies([{"name": "id", "value": "somebody", "url": scene.host.origin}])
    for number in range(4):
        scene.call("saveImpression", features=row(number), matchValue=number, lifetimeDays=1e-6)
    scene.await_reports(4)
    uploads: list[Seen] = [seen for seen in scene.host.seen if seen.method == "POST"]
    assert len(uploads) == 4
    for seen in uploads:
        names = {name.lower() for name in seen.headers}
        assert not names & {"cookie", "referer", "content-type"}
    assert not [seen for seen in scene.host.seen if seen.method == "OPTIONS"]
    assert len({len(seen.body) for seen in uploads}) == 1


def test_an_origin_that_the_vault_does_not_name_is_not_served(scenes: Any) -> None:
    scene = scenes()
    with Site({"/": "<!doctype html><title>stranger</title>"}) as stranger:
        scene.page.goto(stranger.origin)
        heard = scene.page.evaluate(
            """async (vault) => {
              const frame = document.createElement("iframe"), channel = new MessageChannel();
              const heard = new Promise((resolve) => {
                channel.port1.onmessage = () => resolve(true);
                frame.onload = () => setTimeout(() => resolve(false), 500);
              });
              frame.src = vault;
              document.body.append(frame);
              frame.addEventListener("load", () => {
                frame.contentWindow.postMessage("maskedlark", "*", [channel.port2]);
              });
              return heard;
            }""",
            f"{scene.sites.vault.origin}/vault.html",
        )
    assert heard is False


def test_a_page_whose_origin_the_vault_does_not_name_gets_a_typed_error(scenes: Any) -> None:
    scene = scenes()
    with Site({"/": "<!doctype html><title>stranger</title>"}) as stranger:
        # The stub's wait ends at once: this vault never answers
        scene.page.add_init_script("const real = setTimeout; window.setTimeout = (run) => real(run, 0);")
        with pytest.raises(Exception, match="Unavailable: the vault does not answer") as failed:
            scene.open(stranger)
        assert f"does it name {stranger.origin}?" in str(failed.value)


def test_what_could_never_be_reported_is_refused_at_once(scenes: Any) -> None:
    scene = scenes()
    scene.open()
    wrong = {
        "saveImpression": {"features": [1, 2], "matchValue": 1, "lifetimeDays": 1},
        "measureConversion": {"label": 7, "matchValues": [1], "lookbackDays": 1},
    }
    for name, options in wrong.items():
        with pytest.raises(Exception, match="InvalidExample"):
            scene.call(name, **options)
    assert scene.kept()["conversions"] == scene.kept()["impressions"] == 0
