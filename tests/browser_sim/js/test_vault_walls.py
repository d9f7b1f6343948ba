"""What a hostile page, an allowed one, can do to other pages' tasks in the vault, in Chromium: nothing."""

from typing import Any, Final

import pytest

from maskedlark.canonical import encode
from tests.browser_sim.js.raw_port import RawPort
from tests.browser_sim.js.scene import Scene, open_world
from tests.browser_sim.js.sent_reports import CORS
from tests.browser_sim.js.site import Answer, Seen, Site

ROW: Final = [1, 2, 3, 4]
OTHER_ROW: Final = [9, 9, 9, 9]
NO_DEFAULT: Final = {"labels": {"kind": "classes", "size": 2, "default_label": None}}
ROWLESS: Final[dict[str, Any]] = {"maxDelayS": 0, "cap": None, "population": [{"keys": []}]}
PRIVACY_CONTROL: Final = "Object.defineProperty(navigator, 'globalPrivacyControl', { value: true })"
CHANGE_TASKS: Final = """
async ([url, change]) => {
  const done = (request) => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  const database = await done(indexedDB.open("maskedlark"));
  const tasks = database.transaction("tasks", "readwrite").objectStore("tasks");
  for (const task of await done(tasks.getAll())) {
    if (task.url === url) await done(tasks.put({ ...task, ...change }));
  }
  database.close();
}
"""
TASKS: Final = """
async () => {
  const done = (request) => new Promise((resolve) => { request.onsuccess = () => resolve(request.result); });
  const database = await done(indexedDB.open("maskedlark"));
  const tasks = await done(database.transaction("tasks").objectStore("tasks").getAll());
  database.close();
  return tasks.map(({ url, settings }) => [url, settings.maxDelayS]);
}
"""

HOLD_LOCKS: Final = """
async () => {
  const done = (request) => new Promise((resolve) => { request.onsuccess = () => resolve(request.result); });
  const database = await done(indexedDB.open("maskedlark"));
  const keys = await done(database.transaction("tasks").objectStore("tasks").getAllKeys());
  database.close();
  for (const key of keys) {
    await new Promise((granted) => {
      void navigator.locks.request(`maskedlark ${key}`, () => { granted(); return new Promise(() => {}); });
    });
  }
  const timeout = AbortSignal.timeout;
  AbortSignal.timeout = () => timeout.call(AbortSignal, 50);
  return keys.length;
}
"""
WAKE_WORKER: Final = """
async () => {
  const [registration] = await navigator.serviceWorker.getRegistrations();
  registration.active.postMessage("go on");
}
"""


def told(scene: Scene, **options: Any) -> dict[str, Any]:
    """What a page gives to open the scene's task."""
    trusted = [one.verify_key.hex() for one in scene.sent.of.task.helpers]
    given = {"bundle": f"{scene.host.origin}/bundle", "trustedHelpers": trusted, "consent": True}
    return {**given, "maxDelayS": 0, **options}


def hostile(scene: Scene) -> RawPort:
    """A port of the advertiser's origin, in a page of its own beside the publisher's."""
    page = scene.page.context.new_page()
    return RawPort(page, scene.sites.advertiser, f"{scene.sites.vault.origin}/vault.html")


def impression(**options: Any) -> dict[str, Any]:
    return {"features": ROW, "matchValue": 5, "lifetimeDays": 1, **options}


def found(scene: Scene) -> dict[tuple[int, ...], int]:
    """The label of each report by its features, -1 for a fake one."""
    features, labels = scene.sent.found()
    return {tuple(row): label for row, label in zip(features.tolist(), labels.tolist(), strict=True)}


# --- options


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("maxDelayS", {"maxDelayS": "3"}),
        ("maxDelayS", {"maxDelayS": -1}),
        ("maxDelayS", {"maxDelayS": 367 * 86_400}),
        ("cap", {"cap": 3}),
        ("cap.reports", {"cap": {"reports": 0, "days": 1}}),
        ("cap.reports", {"cap": {"reports": 1.5, "days": 1}}),
        ("cap.days", {"cap": {"reports": 1, "days": 400}}),
        ("population", {"population": "people"}),
        ("population", {"population": [{"features": ROW, "keys": []}] * 10_001}),
        ("population[0].features", {"population": [{"keys": []}]}),
        ("population[0].features", {"population": [{"features": [1, 2, 3], "keys": []}]}),
        ("population[0].features[3]", {"population": [{"features": [1, 2, 3, 256], "keys": []}]}),
        ("population[0].keys", {"population": [{"features": ROW}]}),
        ("population[0].keys", {"population": [{"features": ROW, "keys": [1]}]}),
        ("bundle", {"bundle": "javascript:alert(1)"}),
        ("bundle", {"bundle": ["https://reports.example"]}),
        ("trustedHelpers", {"trustedHelpers": ["00" * 32] * 17}),
        ("trustedHelpers[0]", {"trustedHelpers": ["00" * 31]}),
    ],
)  # fmt: skip
def test_an_option_of_a_wrong_type_length_or_range_opens_nothing(
    scenes: Any, name: str, options: dict[str, Any]
) -> None:
    scene = scenes()
    with pytest.raises(Exception, match="InvalidExample") as refused:
        scene.open(**options)
    assert f"InvalidExample: {name}: expected" in str(refused.value)
    assert set(scene.kept().values()) == {0}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("options", None),
        ("features", impression(features=[1, 2])),
        ("features", impression(features={"length": 400_000_000})),
        ("features[3]", impression(features=[1, 2, 3, 256])),
        ("features[0]", impression(features=[None, 2, 3, 4])),
        ("row", {"row": [], "lifetimeDays": 1}),
        ("row", {"row": {"age": {}}, "lifetimeDays": 1}),
        ("measured", impression(measured=7)),
        ("measured.keys", impression(measured={"keys": {"length": 2}, "values": []})),
        ("measured.values", impression(measured={"keys": [], "values": [0] * 65})),
        ("matchValue", impression(matchValue="5")),
        ("matchValue", impression(matchValue=1.5)),
        ("matchValue", impression(matchValue=2**32)),
        ("priority", impression(priority=2**32)),
        ("lifetimeDays", impression(lifetimeDays=367)),
        ("lifetimeDays", impression(lifetimeDays=None)),
        ("conversionOrigins", impression(conversionOrigins=["https://shop.example"] * 11)),
        ("conversionOrigins[0]", impression(conversionOrigins=["shop.example"])),
    ],
)
def test_a_wrong_impression_is_refused(scenes: Any, name: str, options: Any) -> None:
    scene = scenes()
    scene.open()
    with pytest.raises(Exception, match="InvalidExample") as refused:
        scene.page.evaluate("(options) => lark.saveImpression(options)", options)
    assert f"InvalidExample: {name}: expected" in str(refused.value)
    assert scene.kept()["impressions"] == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("options", []),
        ("label", {"label": {}}),
        ("values", {"values": [0] * 65}),
        ("values[0]", {"values": ["1"]}),
        ("matchValues", {"matchValues": 5}),
        ("matchValues", {"matchValues": [5] * 101}),
        ("matchValues[0]", {"matchValues": [-1]}),
        ("lookbackDays", {"lookbackDays": 367}),
        ("impressionOrigins", {"impressionOrigins": "https://news.example"}),
    ],
)
def test_a_wrong_conversion_is_refused(scenes: Any, name: str, options: Any) -> None:
    scene = scenes()
    scene.open()
    given = {"label": 1, "matchValues": [5], "lookbackDays": 1, **options} if options else options
    with pytest.raises(Exception, match="InvalidExample") as refused:
        scene.page.evaluate("(options) => lark.measureConversion(options)", given)
    assert f"InvalidExample: {name}: expected" in str(refused.value)
    assert scene.kept()["conversions"] == 0


@pytest.mark.parametrize(
    ("where", "name", "options"),
    [
        ("options", "maxDelay", {"maxDelay": 3}),
        ("cap", "report", {"cap": {"reports": 1, "days": 1, "report": 2}}),
        ("population[0]", "key", {"population": [{"features": ROW, "keys": [], "key": 1}]}),
        ("options", "a" * 40, {"a" * 50: 1}),
    ],
)
def test_an_unknown_option_opens_nothing_and_is_named(
    scenes: Any, where: str, name: str, options: dict[str, Any]
) -> None:
    scene = scenes()
    with pytest.raises(Exception, match="InvalidExample") as refused:
        scene.open(**options)
    assert f"InvalidExample: {where}: {name} is unknown; expected " in str(refused.value)
    assert set(scene.kept().values()) == {0}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"leastDelay": 5}, "serveVault: leastDelay is unknown; expected intake, origins, "),
        ({"intake": "reports.example"}, "intake: expected "),
        # Else every origin that is a part of it could call
        ({"origins": "https://news.example.org"}, "origins: expected "),
        ({"origins": ["https://news.example/"]}, "origins[0]: expected an origin"),
        ({"trustedHelpers": ["F" * 64]}, "trustedHelpers[0]: expected "),
        # Else all of `origins` could open it
        ({"tasks": {"A" * 64: []}}, "tasks: expected "),
        ({"tasks": {"a" * 64: "https://news.example"}}, "tasks: expected "),
        ({"leastDelayS": "5"}, "leastDelayS: expected "),
        ({"send": "relay"}, "send: expected "),
        ({"worker": True}, "worker: expected "),
    ],
)
def test_a_vault_with_mistyped_options_is_refused_and_answers_nobody(
    scenes: Any, changes: dict[str, Any], told: str
) -> None:
    scene = scenes()
    scene.page.goto(scene.sites.vault.origin + "/vault.html")
    given = {"intake": "https://reports.example", "origins": [], "trustedHelpers": [], **changes}
    refused = scene.page.evaluate(
        """async (options) => {
          const { serveVault } = await import("/dist/vault.js");
          return serveVault(options).then(() => "", ({ kind, message }) => `${kind}: ${message}`);
        }""",
        given,
    )
    assert refused.startswith(f"InvalidExample: {told}")


@pytest.mark.parametrize(
    ("call", "given", "unknown"),
    [
        ("saveImpression", impression(lifetime=7), "options: lifetime"),
        ("saveImpression", impression(measured={"keys": [], "values": [], "value": 1}), "measured: value"),
        ("measureConversion", {"label": 1, "matchValues": [5], "lookback": 1}, "options: lookback"),
    ],
)
def test_an_unknown_option_of_a_call_is_refused_by_name(
    scenes: Any, call: str, given: dict[str, Any], unknown: str
) -> None:
    scene = scenes()
    scene.open()
    with pytest.raises(Exception, match=f"InvalidExample: {unknown} is unknown; expected "):
        scene.call(call, **given)
    assert {**scene.kept(), "tasks": 0} == dict.fromkeys(scene.kept(), 0)


def test_messages_of_no_form_are_passed_over(scenes: Any) -> None:
    scene = scenes()
    port = RawPort(scene.page, scene.sites.publisher, f"{scene.sites.vault.origin}/vault.html")
    port.send_unanswered(
        '[null, 7, "open", [], {}, { id: "1", call: "open" }, { id: 2 ** 60, call: "open" }]'
    )
    wrong = [{}, {"call": "__proto__"}, {"call": ["open"]}, {"call": "open"}, {"call": "withdraw", "task": 5}]
    assert port.send(wrong) == ["Refused", "Refused", "Refused", None, "Refused"]
    assert len(port.call("open", options=told(scene))) == 64


# --- one task cannot stop another


@pytest.mark.parametrize("change", [{"settings": ROWLESS}, {"settings": None}, {"bundle": 5}])
def test_a_task_that_is_stored_broken_stops_itself_alone(scenes: Any, change: dict[str, Any]) -> None:
    scene = scenes()
    other = open_world(name="broken", keys=scene.sent.of.keys, fake_report_rate=0.9)
    with Site({}, handler=lambda _seen: Answer(body=encode(other.bundle), headers=CORS)) as host:
        broken = f"{host.origin}/bundle"
        assert scene.open(bundle=broken)
        scene.call("saveImpression", **impression(lifetimeDays=0.5))
        assert scene.open()
        scene.call("saveImpression", **impression(lifetimeDays=0.5))
        scene.vault.evaluate(CHANGE_TASKS, [broken, change])
        scene.skip_days(1)
    scene.await_reports(1)
    assert found(scene) == {tuple(ROW): 0}
    failures = scene.vault.evaluate("async () => [...(await window.engine).failures.values()]")
    assert len(failures) == 1
    assert failures[0]["tries"] >= 1
    assert scene.kept()["impressions"] == 1


# --- nothing tells whether a conversion matched

WATCH: Final = """
() => {
  window.log = [];
  const note = (...what) => window.log.push(what.join(" "));
  const watch = (of, name, sizes) => {
    const real = of[name];
    of[name] = function (...given) {
      note(name, this?.name ?? "", ...sizes(given));
      return real.apply(this, given);
    };
  };
  const none = () => [];
  const reads = ["get", "getKey", "getAll", "getAllKeys", "count", "openCursor", "openKeyCursor"];
  for (const name of [...reads, "add", "put", "delete", "clear"]) watch(IDBObjectStore.prototype, name, none);
  for (const name of reads) watch(IDBIndex.prototype, name, none);
  watch(IDBDatabase.prototype, "transaction", none);
  for (const name of ["encrypt", "sign", "deriveBits", "importKey", "generateKey"]) {
    watch(SubtleCrypto.prototype, name, (given) => given.map((one) => one?.byteLength ?? one?.length ?? 0));
  }
  watch(MessagePort.prototype, "postMessage", ([reply]) => [JSON.stringify({ ...reply, id: 0 })]);
  watch(window, "fetch", ([, { body }]) => [body?.byteLength]);
  const now = Date.now();
  Date.now = () => now;
  crypto.getRandomValues = (into) => into.fill(0);
  window.setTimeout = (_run, ms) => { note("setTimeout", ms); return 0; }; // turns are asked for, below
}
"""


def work(scene: Scene, match_value: int) -> list[str]:
    """Everything that the vault does from a conversion to the upload of the report, and what for."""
    scene.open()
    scene.vault.evaluate(WATCH)
    scene.call("saveImpression", **impression())
    scene.call("measureConversion", label=1, matchValues=[match_value], lookbackDays=1)
    scene.turn()
    scene.skip_days(2)
    scene.turn()
    scene.await_reports(1)
    log: list[str] = scene.vault.evaluate("() => window.log")
    return log


@pytest.mark.parametrize("changes", [{}, NO_DEFAULT], ids=["default label", "no default label"])
@pytest.mark.parametrize("cap", [None, {"reports": 1, "days": 30}], ids=["", "cap"])
def test_a_match_changes_no_work_no_time_and_no_request(
    scenes: Any, changes: dict[str, Any], cap: dict[str, Any] | None
) -> None:
    logs = []
    for match_value, label in ((5, 1), (6, -1 if changes else 0)):
        scene = scenes(open_world(fake_report_rate=0.0, num_decoys=1, **changes))
        scene.options = {"cap": cap}
        logs.append(work(scene, match_value))
        assert scene.sent.found()[1].tolist() == [label]
    assert logs[0] == logs[1]
    assert [line.split()[0] for line in logs[0]].count("fetch") == 1


def test_a_task_without_a_default_label_sends_a_fake_report_for_what_does_not_convert(scenes: Any) -> None:
    scene = scenes(open_world(**NO_DEFAULT))
    scene.open(population=[{"features": OTHER_ROW, "keys": []}])
    scene.call("saveImpression", **impression())
    scene.call("saveImpression", **impression(features=[4, 3, 2, 1], matchValue=6))
    scene.call("measureConversion", label=0, matchValues=[6], lookbackDays=1)
    scene.skip_days(2)
    scene.await_reports(2)
    assert found(scene) == {tuple(OTHER_ROW): -1, (4, 3, 2, 1): 0}


@pytest.mark.parametrize(("least", "expected"), [(None, 3_600), (60, 60)])
def test_no_page_gets_a_shorter_delay_than_the_vaults_least(
    scenes: Any, least: int | None, expected: int
) -> None:
    scene = scenes(vault={"leastDelayS": least} if least else {"leastDelayS": None})
    scene.open(maxDelayS=0)
    assert [delay for _url, delay in scene.vault.evaluate(TASKS)] == [expected]


# --- the person's No


@pytest.mark.parametrize("why", ["no consent", "global privacy control", "privacy control and a message"])
def test_a_later_no_erases_what_is_kept_waits_and_is_sealed(scenes: Any, why: str) -> None:
    unavailable = Answer(status=503, headers={**CORS, "retry-after": "3600"})
    answers: list[Answer | str] = [unavailable]
    scene = scenes(disturb=lambda _seen: answers[-1])
    scene.open()
    scene.call("saveImpression", **impression(lifetimeDays=0.1))
    scene.skip_days(0.2)  # sealed, and kept for later
    scene.open(maxDelayS=20 * 86_400)
    scene.call("saveImpression", **impression(lifetimeDays=0.1))
    scene.call("saveImpression", **impression(lifetimeDays=9))
    scene.call("measureConversion", label=1, matchValues=[5], lookbackDays=1)
    scene.skip_days(0.2)
    assert scene.kept()["impressions"] + scene.kept()["waiting"] == 2
    before = len(scene.sent.bodies)
    answers.append("answer")
    if why == "no consent":
        page = scene.page.context.new_page()
        assert not scene.sites.open(page, scene.sites.publisher, **told(scene, consent=False))
    else:
        scene.vault.evaluate(PRIVACY_CONTROL)
        scene.turn() if why == "global privacy control" else scene.call("saveImpression", **impression())
    assert set(scene.kept().values()) == {0}
    scene.skip_days(10)
    assert len(scene.sent.bodies) == before


def test_privacy_control_switched_on_between_two_uploads_stops_the_second(scenes: Any) -> None:
    scene = scenes()
    scene.open()
    for _ in range(3):
        scene.call("saveImpression", **impression())
    scene.vault.evaluate(
        f"""() => {{
          const real = window.fetch;
          window.fetch = async (...given) => {{
            const answer = await real(...given);
            {PRIVACY_CONTROL};
            return answer;
          }};
        }}"""
    )
    scene.skip_days(2)
    assert len(scene.sent.bodies) == 1
    assert set(scene.kept().values()) == {0}


def test_privacy_control_erases_in_a_service_worker_too(scenes: Any) -> None:
    scene = scenes(vault={"worker": "/dist/worker.js"})
    scene.open()
    scene.call("saveImpression", **impression())
    context = scene.page.context
    [worker] = context.service_workers or [context.wait_for_event("serviceworker")]
    worker.evaluate(PRIVACY_CONTROL)
    assert scene.kept()["impressions"] == 1
    scene.vault.evaluate(WAKE_WORKER)
    while set(scene.kept().values()) != {0}:
        scene.page.wait_for_timeout(20)


def test_a_page_that_keeps_the_vaults_locks_delays_turns_and_no_erasure(scenes: Any) -> None:
    scene = scenes()
    scene.open()
    scene.call("saveImpression", **impression())
    assert scene.vault.evaluate(HOLD_LOCKS) == 1
    scene.turn()  # returns
    assert scene.kept()["impressions"] == 1
    scene.vault.evaluate(PRIVACY_CONTROL)
    scene.turn()
    assert set(scene.kept().values()) == {0}


@pytest.mark.parametrize("by", ["consent", "withdraw"])
def test_a_no_on_one_origin_erases_its_own_part_alone(scenes: Any, by: str) -> None:
    scene = scenes()
    origin = scene.sites.advertiser.origin
    scene.open()
    scene.call("saveImpression", **impression(conversionOrigins=[origin]))
    other = hostile(scene)
    task = other.call("open", options=told(scene))
    other.call("saveImpression", task=task, options=impression(features=OTHER_ROW, matchValue=6))
    conversion = {"label": 1, "matchValues": [5], "lookbackDays": 1}
    converted = {**conversion, "impressionOrigins": [scene.sites.publisher.origin]}
    assert other.call("measureConversion", task=task, options=converted) is None
    scene.turn()  # the label is in the publisher's impression
    if by == "consent":
        assert other.call("open", options={"consent": False}) is None
    else:
        assert other.call("withdraw", task=task) is None
    assert scene.kept() == {**dict.fromkeys(scene.kept(), 0), "tasks": 1, "impressions": 1}
    scene.skip_days(2)
    scene.await_reports(1)
    assert found(scene) == {tuple(ROW): 0}


@pytest.mark.parametrize("consent", ["yes", 1, None])
def test_a_consent_that_is_neither_true_nor_false_is_refused_and_erases_nothing(
    scenes: Any, consent: Any
) -> None:
    scene = scenes()
    scene.open()
    scene.call("saveImpression", **impression())
    with pytest.raises(Exception, match="InvalidExample: consent: expected true or false"):
        scene.open(consent=consent)
    assert scene.kept()["impressions"] == 1


# --- a task belongs to the origin that opened it


def test_a_raw_port_reaches_no_task_of_another_origin(scenes: Any) -> None:
    scene = scenes()
    scene.open()
    scene.call("saveImpression", **impression())
    task = scene.sent.of.task.task_id.hex()
    other = hostile(scene)
    conversion = {"label": 1, "matchValues": [5], "lookbackDays": 1}
    assert other.call("saveImpression", task=task, options=impression()) == "Refused"
    assert other.call("measureConversion", task=task, options=conversion) == "Refused"
    for forged in (task, f"{task}@{scene.sites.publisher.origin}"):
        assert other.call("withdraw", task=forged) in {None, "Refused"}
    assert scene.kept()["impressions"] == 1
    scene.skip_days(2)
    scene.await_reports(1)
    assert found(scene) == {tuple(ROW): 0}


def test_an_origin_that_opens_the_same_task_reaches_nothing_of_another(scenes: Any) -> None:
    scene = scenes()
    scene.open()
    scene.call("saveImpression", **impression())
    other = hostile(scene)
    task = other.call("open", options=told(scene, cap={"reports": 1, "days": 300}, maxDelayS=9e6))
    converted = {"label": 1, "matchValues": [5], "lookbackDays": 1}
    victim = [scene.sites.publisher.origin]
    assert (
        other.call("measureConversion", task=task, options={**converted, "impressionOrigins": victim}) is None
    )
    # An impression that a victim's conversion would rather take.
    mine = impression(features=OTHER_ROW, priority=9, conversionOrigins=victim)
    assert other.call("saveImpression", task=task, options=mine) is None
    assert scene.call("measureConversion", **converted) is None
    assert other.call("open", options=told(scene, cap={"reports": 1, "days": 300}, maxDelayS=9e6)) == task
    scene.skip_days(2)
    scene.await_reports(1)
    # The other origin's own impression is sent within 104 days, so now and then it is there too
    if tuple(ROW) not in found(scene):
        scene.await_reports(2)
    assert found(scene)[tuple(ROW)] == 1  # at once, by the victim's own conversion, under no cap
    assert found(scene).get(tuple(OTHER_ROW), 0) == 0


def test_the_vaults_site_names_which_origins_may_open_a_task(scenes: Any) -> None:
    of = open_world(unit="user", reports_per_user=2)
    scene = scenes(of, vault={"tasks": {of.task.task_id.hex(): ["https://news.example"]}})
    with pytest.raises(Exception, match="Refused"):
        scene.open()
    assert set(scene.kept().values()) == {0}


# --- bounds


def test_a_flood_of_impressions_evicts_those_of_its_own_origin(scenes: Any) -> None:
    scene = scenes(open_world(num_features=60_000))
    scene.open()
    scene.page.evaluate("() => lark.saveImpression({ features: new Uint8Array(60000), lifetimeDays: 1 })")
    other = hostile(scene)
    other.call("open", options=told(scene))
    make = f"""(id) => ({{
      call: "saveImpression",
      task: "{scene.sent.of.task.task_id.hex()}",
      options: {{ features: new Uint8Array(60000).fill(1), lifetimeDays: 1 + id }},
    }})"""
    assert other.send_made(90, make) == [None] * 90
    kept = scene.kept()["impressions"]
    assert 1 < kept < 80
    scene.skip_days(1.5)
    scene.await_reports(1)
    assert len(scene.sent.reports) == 1  # the victim's alone: the flood's that were due first are evicted
    assert not scene.sent.found()[0].any()


def test_of_too_many_tasks_an_origins_own_are_evicted(scenes: Any) -> None:
    scene = scenes()
    others = [open_world(name=f"task {number}", keys=scene.sent.of.keys) for number in range(9)]

    def serve(seen: Seen) -> Answer:
        return Answer(body=encode(others[int(seen.path[1:])].bundle), headers=CORS)

    with Site({}, handler=serve) as host:
        scene.open()
        scene.call("saveImpression", **impression())
        other = hostile(scene)
        for number in range(9):
            assert len(other.call("open", options=told(scene, bundle=f"{host.origin}/{number}"))) == 64
        urls = [url for url, _delay in scene.vault.evaluate(TASKS)]
        assert sorted(urls) == sorted(
            [f"{scene.host.origin}/bundle", *(f"{host.origin}/{number}" for number in range(1, 9))]
        )
        assert scene.kept()["impressions"] == 1


def test_a_flood_of_messages_is_refused_and_a_no_is_not(scenes: Any) -> None:
    scene = scenes()
    port = RawPort(scene.page, scene.sites.publisher, f"{scene.sites.vault.origin}/vault.html")
    task = port.call("open", options=told(scene))
    port.call("saveImpression", task=task, options=impression())
    replies = port.send_made(5_000, '() => ({ call: "nothing" })')
    assert replies.count("TooMany") > 1_000
    assert port.send_made(1_000, '() => ({ call: "nothing" })').count("TooMany") > 0
    assert port.call("withdraw", task=task) is None
    assert set(scene.kept().values()) == {0}


# --- the core


@pytest.mark.parametrize(("value", "is_inside"), [(-3, True), (9, True), (-4, False), (10, False)])
def test_a_value_one_past_a_bound_makes_no_report(scenes: Any, value: int, is_inside: bool) -> None:
    values = [{"name": "spent", "low": -3, "high": 9, "is_clamped": False}]
    of = open_world(measurement={"min_cell_count": 1, "values": values, "keys": []})
    scene = scenes(of)
    scene.page.goto(f"{scene.sites.publisher.origin}/dist/core.js")
    script = """
    async ([url, bundle, trusted, value]) => {
      const core = await import(url);
      const opened = await core.openBundle(core.fromHex(bundle), trusted.map(core.fromHex));
      const sealer = await core.Sealer.of(opened);
      const measured = { keys: [], values: [value] };
      const example = { features: new Uint8Array(4), label: 0, measured };
      return sealer.report(example, Date.now() / 1000).then(() => "", (error) => error.message);
    }
    """
    trusted = [one.verify_key.hex() for one in of.task.helpers]
    url = f"{scene.sites.publisher.origin}/dist/core.js"
    told = scene.page.evaluate(script, [url, encode(of.bundle).hex(), trusted, value])
    assert told == ("" if is_inside else "value spent lies outside its bounds -3..9")
