"""HPKE keys over time: pending, active, expired; and rotations while reports come in."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from helper.cli.main import app
from helper.trust.key_ring import MAX_KEY_ID, KeyState, Ring, RingKey
from helper.trust.keys import FILE_NAME, HelperKeys, log_keys, rotate
from maskedlark import canonical
from maskedlark.audit_log import THIS_SERVICE, Actor, AuditAct
from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.randomness import seeded
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.sealing import SignedKeyList
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.upload import Report, Sealer
from maskedlark.utc import format_utc
from tests.builders import NOW, shares_for
from tests.helper.parties import Scene

SUITE = HpkeSuite.X25519_AES128GCM
DAY = 86_400


def ids(keys: object) -> list[int]:
    return [key.key_id for key in keys]  # type: ignore[attr-defined]  # any kind of key


def turn(ring: Ring, now: float, *, active_in_s: int = 0, overlap_s: int = DAY) -> Ring:
    return ring.rotate(now=now, suite=SUITE, active_in_s=active_in_s, overlap_s=overlap_s)


def test_a_new_key_is_pending_then_published_first_while_the_old_one_still_opens() -> None:
    ring = turn(Ring.first(SUITE), NOW, active_in_s=60)
    assert [key.state(NOW) for key in ring] == [KeyState.ACTIVE, KeyState.PENDING]
    assert ids(ring.keys_to_publish(NOW)) == [1]
    assert ids(ring.opening_keys(NOW)) == [1, 2]
    assert ids(ring.keys_to_publish(NOW + 60)) == [2, 1]
    assert ids(ring.keys_to_publish(NOW + 60 + DAY)) == ids(ring.opening_keys(NOW + 60 + DAY)) == [2]
    assert ring[0].state(NOW + 60 + DAY) is KeyState.EXPIRED


def test_an_expired_keys_secret_is_erased_and_its_id_is_not_used_again() -> None:
    ring = turn(Ring.first(SUITE), NOW, overlap_s=0)
    later = turn(ring, NOW + 1, overlap_s=0)
    assert ids(later) == [1, 2, 3]
    assert [bool(key.secret) for key in later] == [False, False, True]


@settings(deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_whatever_the_rotations_ids_are_new_and_a_key_that_was_published_opens_through_its_overlap(
    steps: list[tuple[int, int, int]],
) -> None:
    ring, now = Ring.first(SUITE), float(NOW)
    for wait, active_in_s, overlap_s in steps:
        now += wait
        before = {key.key_id for key in ring.keys_to_publish(now)}
        newest = ring.keys_to_publish(now)[0].key_id
        ring = turn(ring, now, active_in_s=active_in_s, overlap_s=overlap_s)
        assert ids(ring) == list(range(1, len(ring) + 1))
        if active_in_s + overlap_s:
            assert before & set(ids(ring.opening_keys(now)))
        until = ring[newest - 1].expires_at
        assert until is not None
        assert newest in ids(ring.opening_keys(until - 0.5)) or until <= now
        assert ring.keys_to_publish(now + active_in_s)


def test_the_last_id_is_not_followed_by_another() -> None:
    last = Ring((replace(Ring.first(SUITE)[0], key_id=MAX_KEY_ID),))
    with pytest.raises(InvalidTask, match="never reused"):
        turn(last, NOW)


def test_without_a_key_that_has_not_expired_nothing_is_published() -> None:
    with pytest.raises(InvalidTask, match="all HPKE keys have expired"):
        Ring((RingKey(key_id=1, suite=SUITE, expires_at=int(NOW), secret=bytes(32)),)).keys_to_publish(NOW)


def test_a_clock_that_ran_ahead_and_is_set_back_leaves_a_key_to_seal_to() -> None:
    ahead = NOW + 3600
    ring = turn(turn(Ring.first(SUITE), ahead, overlap_s=60), ahead + 120, active_in_s=30)
    assert [bool(key.secret) for key in ring] == [
        False,
        True,
        True,
    ]  # the first one was erased by the wrong clock
    assert ids(ring.keys_to_publish(NOW)) == [2]
    assert 2 in ids(ring.opening_keys(NOW))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def fresh_sealer(scene: Scene) -> Sealer:
    """What a browser has that fetched the task's bundle now."""
    lists = (scene.cores[0].status().key_list, scene.cores[1].status().key_list)
    bundle = TaskBundle(task=scene.bundle.task, signatures=scene.bundle.signatures, key_lists=lists)
    bundle.verify()
    return Sealer(bundle, now=NOW)


def test_three_rotations_under_load_lose_no_report(scene: Scene) -> None:
    """Browsers seal without pause with whatever bundle they have, fetched now or two rotations ago.

    Helpers are never restarted.
    """
    sealers = [fresh_sealer(scene)]

    def seal(number: int) -> list[Report]:
        randomness = seeded(number, "reports under rotation")
        sealer = sealers[max(0, len(sealers) - 1 - number % 3)]
        return [
            sealer.report(example, unix_s=NOW, randomness=randomness)
            for example in scene.examples(10, number)
        ]

    with ThreadPoolExecutor(2) as browsers:
        waiting = [browsers.submit(seal, number) for number in range(8)]
        for turned in range(3):
            for party in scene.parties:
                rotate(party.data, now=NOW, suite=list(HpkeSuite)[turned + 1], active_in_s=0, overlap_s=DAY)
            sealers.append(fresh_sealer(scene))
            waiting += [browsers.submit(seal, 8 * (turned + 1) + number) for number in range(8)]
        reports = [report for batch in waiting for report in batch.result()]
    assert len({report.shares[0].key_id for report in reports}) == 4
    prepared = scene.prepare(reports)
    assert prepared.chosen.all()
    assert len(prepared.chosen) == 320
    assert not prepared.admitted[0].dropped


def test_a_key_id_that_the_helper_has_no_more_is_a_typed_reason(scene: Scene) -> None:
    old = scene.reports(3)
    for _ in range(2):
        for party in scene.parties:
            rotate(party.data, now=NOW - 2 * DAY, suite=SUITE, active_in_s=0, overlap_s=DAY)
    preparation = scene.cores[0].datasets.prepare(scene.task_id, b"h" * 16, None)
    preparation.add(shares_for(old, 0))
    assert preparation.finish().dropped == {ReportReason.UNKNOWN_KEY: 3}


def test_a_key_file_that_is_damaged_later_leaves_the_helper_with_the_keys_it_has(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    path = scene.parties[0].data / FILE_NAME
    path.write_bytes(b"damaged")
    assert ids(scene.cores[0].status().key_list.key_list.keys) == [1]
    assert "previous keys stay in use" in caplog.text


def test_a_key_file_that_is_away_leaves_the_helper_with_its_keys_without_a_warning_at_each_look(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    (scene.parties[0].data / FILE_NAME).unlink()
    assert ids(scene.cores[0].status().key_list.key_list.keys) == [1]
    assert "key file" not in caplog.text


def test_rotations_at_once_are_each_a_key(scene: Scene) -> None:
    folder = scene.parties[0].data
    with ThreadPoolExecutor(4) as pool:
        for _ in range(8):
            pool.submit(rotate, folder, now=NOW, suite=SUITE, active_in_s=0, overlap_s=DAY)
    assert ids(HelperKeys.read(folder).ring()) == list(range(1, 10))
    assert (folder / FILE_NAME).stat().st_mode & 0o077 == 0


def test_the_command_line_rotates_and_lists(tmp_path: Path) -> None:
    HelperKeys.generate(name="north", suite=SUITE).write(tmp_path)
    runner = CliRunner()
    done = runner.invoke(app, ["keys", "rotate", "--data", str(tmp_path), "--overlap-days", "0", "--json"])
    assert done.exit_code == 0
    listed = json.loads(runner.invoke(app, ["keys", "list", "--data", str(tmp_path), "--json"]).output)
    assert listed.keys() == json.loads(done.stdout).keys() == {"name", "fingerprint", "keys"}
    assert [(row["key_id"], row["state"]) for row in listed["keys"]] == [(1, "expired"), (2, "active")]
    shown = runner.invoke(app, ["keys", "list", "--data", str(tmp_path)]).output
    assert "active" in shown
    # What `keygen` printed, for the other helper's --peer
    fingerprint = HelperKeys.read(tmp_path).identity.fingerprint
    assert listed["fingerprint"] == fingerprint
    assert f"fingerprint    {fingerprint}" in shown.splitlines()
    assert HelperKeys.read(tmp_path).ring()[1].secret.hex() not in shown + str(listed) + done.output


def test_a_rotation_warns_where_browsers_may_seal_to_a_key_that_opens_no_longer(tmp_path: Path) -> None:
    HelperKeys.generate(name="north", suite=SUITE).write(tmp_path)
    command = ["keys", "rotate", "--data", str(tmp_path), "--active-in-hours", "1", "--overlap-days"]
    assert CliRunner().invoke(app, [*command, "3"]).stderr == ""
    warned = CliRunner().invoke(app, [*command, "1"])
    assert warned.exit_code == 0
    active_from = HelperKeys.read(tmp_path).ring()[-1].active_from
    assert f"until {format_utc(active_from + DAY)}, but browsers" in warned.stderr
    assert f"seal to them until {format_utc(active_from + 3 * DAY)}" in warned.stderr
    assert "0 is for a leaked key" in warned.stderr
    assert "warning" in CliRunner().invoke(app, [*command, "0"]).stderr


def test_a_rotation_keeps_the_suite_unless_another_is_named(tmp_path: Path) -> None:
    hybrid = HpkeSuite.MLKEM768_X25519_AES128GCM
    HelperKeys.generate(name="north", suite=hybrid).write(tmp_path)
    for named in ((), ("--suite", SUITE.value), ()):
        command = ["keys", "rotate", "--data", str(tmp_path), *named]
        assert CliRunner().invoke(app, command).exit_code == 0
    assert [key.suite for key in HelperKeys.read(tmp_path).ring()] == [hybrid, hybrid, SUITE, SUITE]


def test_a_list_of_before_a_rotation_is_sealed_by_for_three_days_at_most(scene: Scene) -> None:
    party, old = scene.parties[0], scene.bundle
    rotate(party.data, now=NOW, suite=SUITE, active_in_s=0, overlap_s=30 * DAY)
    Sealer(old, now=NOW + 3 * DAY - 3_600)
    for later in (3 * DAY + 1, 29 * DAY):
        with pytest.raises(InvalidTask, match="fetch the task's bundle again"):
            Sealer(old, now=NOW + later)
    party.now = NOW + 29 * DAY
    fetched = replace(old, key_lists=(scene.cores[0].status().key_list, old.key_lists[1]))
    assert fetched.key_lists[0].key_list.keys[0].key_id == 2
    fetched.key_lists[0].check_fresh(NOW + 29 * DAY)


def test_the_end_of_a_list_is_signed(scene: Scene) -> None:
    signed = scene.bundle.key_lists[0]
    longer = replace(signed, key_list=replace(signed.key_list, not_after=signed.key_list.not_after + DAY))
    with pytest.raises(InvalidTask, match="signature"):
        Sealer(replace(scene.bundle, key_lists=(longer, scene.bundle.key_lists[1])), now=NOW)


def test_a_list_that_names_no_end_is_over(scene: Scene) -> None:
    keys = HelperKeys.read(scene.parties[0].data)
    endless = SignedKeyList.sign(keys._signing, keys.ring().keys_to_publish(NOW), not_after=0)
    assert b"not_after" not in canonical.encode(endless)  # as lists were before they named one
    with pytest.raises(InvalidTask, match="is over"):
        Sealer(replace(scene.bundle, key_lists=(endless, scene.bundle.key_lists[1])), now=NOW)


def test_a_sealer_that_lives_long_can_tell_that_its_keys_are_over(scene: Scene) -> None:
    sealer = Sealer(scene.bundle, now=NOW)
    sealer.check_fresh(NOW + 2 * DAY)
    with pytest.raises(InvalidTask, match="keys is over"):
        sealer.check_fresh(NOW + 4 * DAY)


@given(st.integers(0, 3 * 3_600), st.integers(0, 3 * 3_600))
def test_lists_of_one_hour_are_the_same_and_none_outlives_its_key(first: int, second: int) -> None:
    ring = Ring.first(SUITE)
    ends = [ring.list_ends_at(NOW + moment) for moment in (first, second)]
    is_one_hour = (NOW + first) // 3_600 == (NOW + second) // 3_600
    assert (ends[0] == ends[1]) is is_one_hour
    pending = turn(ring, NOW + first, active_in_s=7_200, overlap_s=60)
    assert pending.list_ends_at(NOW + first) == NOW + first + 7_200 + 60
    active = NOW + first + 7_200  # from here on the list's first key is the new one, which lasts
    assert pending.list_ends_at(active) == ring.list_ends_at(active)


def test_a_key_id_is_a_byte() -> None:
    key = Ring.first(HpkeSuite.X25519_AES128GCM)[0]
    assert replace(key, key_id=255).key_id == 255
    with pytest.raises(ValueError, match="less than or equal to 255"):
        replace(key, key_id=256)


def test_the_log_says_which_keys_there_are_and_nothing_secret() -> None:
    told: list[tuple[AuditAct, dict[str, str], Actor]] = []
    ledger: Any = SimpleNamespace(log_change=lambda *given: told.append(given))
    suite = HpkeSuite.X25519_AES128GCM
    ring = Ring.first(suite).rotate(now=100.0, suite=suite, active_in_s=7, overlap_s=9)
    log_keys(ledger, ring, THIS_SERVICE)
    ((act, about, actor),) = told
    assert (act, actor) == (AuditAct.SET_KEYS, THIS_SERVICE)
    wanted = {"newest_key": "2", "suite": suite.value, "active_from": "107", "keys": "2"}
    assert {name: about[name] for name in wanted} == wanted
    assert len(about["digest"]) == 64
    first, second = ring
    others = [
        (first,),
        (replace(first, expires_at=117), second),
        (replace(first, active_from=1), second),
        (first, replace(second, suite=HpkeSuite.X25519_CHACHA20POLY1305)),
        (first, replace(second, key_id=3)),
    ]
    for other in others:
        log_keys(ledger, Ring(other), THIS_SERVICE)
    assert len({one["digest"] for _, one, _ in told}) == 1 + len(others)
    log_keys(ledger, Ring(replace(key, secret=b"") for key in ring), THIS_SERVICE)
    assert told[-1][1] == about
