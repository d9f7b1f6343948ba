"""Jobs in the database, SQLite or PostgreSQL: ids, leases, and figures that are kept once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from sqlalchemy import Select, update

from adserver.messages.job import job_facts
from adserver.records.job_record import JobRecord, Stop
from adserver.records.job_state import JobEvent, JobState
from adserver.records.round_figures import RoundFigures
from adserver.store.database import open_store
from adserver.store.job_files import submit
from adserver.store.leases import MAX_WORKERS_LOST, WORKERS_LOST, JobLeases
from adserver.store.schema import metadata
from adserver.store.sqlite_jobs import _SqliteJobs, jobs_in
from adserver.store.version import FILE_NAME, SCHEMA_VERSION
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from tests.adserver.job_world import ENCODED_MODEL, Site, eval_set_npz, plan_for, sealed
from tests.patience import HANGS_S

OF = sealed()
LEASE_S = 10.0
UNKNOWN = bytes(16)


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Site]:
    made = Site(tmp_path, OF, url=database_url)
    yield made
    made.engine.dispose()


def leases(site: Site, owner: str = "one") -> JobLeases:
    return JobLeases(site.engine, site.clock, owner=owner, lease_s=LEASE_S)


def submitted(site: Site, number: int = 1) -> bytes:
    return site.submit(plan_for(OF, job_id=bytes([number]) * 16))


def test_a_submitted_job_is_queued_with_its_plan(site: Site) -> None:
    job = site.store.get(submitted(site))
    assert (job.state, job.rounds_done, job.stop, job.is_closed) == (JobState.QUEUED, 0, None, False)
    assert job.plan == plan_for(OF, job_id=bytes([1]) * 16)


def test_a_job_has_the_digest_of_its_evaluation_set(site: Site) -> None:
    assert site.store.get(submitted(site)).eval_set_digest is None
    panel = eval_set_npz(OF)
    plan, digest = plan_for(OF, job_id=bytes([2]) * 16), bytes(range(32))
    submit(
        site.engine,
        site.data_dir,
        plan,
        model=ENCODED_MODEL,
        eval_set=panel,
        eval_set_digest=digest,
        clock=site.clock,
    )
    job = site.store.get(plan.job.job_id)
    assert job.eval_set_digest == digest
    assert site.store.all()[1] == job


def test_a_job_is_found_by_the_start_of_its_id(site: Site) -> None:
    first, second = submitted(site, 0x11), submitted(site, 0x12)
    assert site.store.find("11").job_id == first
    assert site.store.find(second.hex()).job_id == second
    for prefix in ("1", "ff", "", "no hex"):
        with pytest.raises(JobRefused) as refusal:
            site.store.find(prefix)
        assert refusal.value.reason is JobReason.UNKNOWN_JOB


def named(site: Site, **names: str) -> dict[str, bytes]:
    """Submit a job for each name; of a key `x11` the id is of bytes 0x11."""
    made = {}
    for number, name in names.items():
        job_id = bytes([int(number[1:], 16)]) * 16
        site.store.submit(plan_for(OF, job_id=job_id), name=name)
        made[name] = job_id
    return made


def test_a_job_is_found_by_the_start_of_its_name(site: Site) -> None:
    ids = named(site, x11="wide", x12="wide, slow", x13="100%_ü/a", x14="Deep", xab="12 rounds", xcd="ab")
    find = site.store.find
    for typed, name in [
        ("wide", "wide"),
        ("wide,", "wide, slow"),
        ("wide, slow", "wide, slow"),
        ("100%_ü", "100%_ü/a"),
        ("De", "Deep"),
        ("12 ", "12 rounds"),
        ("11" * 16, "wide"),
        ("CD", "ab"),
    ]:
        assert find(typed).job_id == ids[name], typed
    # No pattern, no other case, and no text that no job is called
    for typed in ("wi%", "wid_", "deep", "wide\0", "\udcff", "w" * 5_000, "12" * 16 + "0"):
        with pytest.raises(JobRefused, match="no job has an id or a name that starts with") as refusal:
            find(typed)
        assert refusal.value.reason is JobReason.UNKNOWN_JOB


def test_what_may_mean_several_jobs_is_refused_with_their_ids_and_names(site: Site) -> None:
    named(site, x11="wide", x12="wide, slow", x13="wider", xab="12 rounds")
    # One job's id and another's name start with 12: to take either could cancel the wrong job
    for typed, candidates in {
        "wid": ("111111111111 ('wide')", "121212121212 ('wide, slow')", "131313131313 ('wider')"),
        "12": ("121212121212 ('wide, slow')", "abababababab ('12 rounds')"),
    }.items():
        with pytest.raises(JobRefused) as refusal:
            site.store.find(typed)
        assert all(one in str(refusal.value) for one in candidates)
    for number in range(0x20, 0x27):
        site.store.submit(plan_for(OF, job_id=bytes([number]) * 16), name="twin")
    with pytest.raises(JobRefused, match=r"242424242424 .'twin'. and 2 more; give more of one"):
        site.store.find("twin")


def test_no_name_stands_for_another_jobs_whole_id(site: Site) -> None:
    ids = named(site, x11="22" * 16, x22="other")
    assert site.store.find("22" * 16).job_id == ids["other"]


def test_a_dataset_is_one_that_was_trained_on_once_a_round_of_a_job_was_computed(site: Site) -> None:
    submitted(site)
    task, dataset = OF.of.task.task_id, OF.datasets[0].dataset_id
    worker = leases(site)
    claimed = worker.claim()
    assert claimed is not None
    worker.record(claimed.job_id, RoundFigures(rounds_done=0, finished_at_s=1.0))
    assert not site.store.has_trained(task, dataset)
    worker.record(claimed.job_id, RoundFigures(rounds_done=1, finished_at_s=2.0))
    assert site.store.has_trained(task, dataset)
    assert not site.store.has_trained(task, UNKNOWN)
    assert not site.store.has_trained(UNKNOWN, dataset)


def light(tmp_path: Path) -> tuple[Site, _SqliteJobs]:
    """A site with the embedded database, and what looks at it without SQLAlchemy."""
    site = Site(tmp_path, OF)
    seen = jobs_in(tmp_path)
    assert seen is not None
    return site, seen


def test_jobs_are_the_same_seen_without_sqlalchemy(tmp_path: Path) -> None:
    site, seen = light(tmp_path)
    job_ids = [submitted(site, number) for number in (0x11, 0x12)]
    worker = leases(site)
    claimed = worker.claim()
    assert claimed is not None
    for rounds in (1, 2):
        worker.record(claimed.job_id, RoundFigures(rounds_done=rounds, finished_at_s=1.0, loss=0.5))
    stop = Stop(reason="overflow", cause="too large")
    worker.let_go(claimed.job_id, JobEvent.REFUSE, stop)
    assert seen.all() == site.store.all()
    for job_id in job_ids:
        assert seen.get(job_id) == seen.find(job_id.hex()) == site.store.get(job_id)
        for after_rounds in (-1, 1):
            history = site.store.history(job_id, after_rounds=after_rounds)
            assert seen.history(job_id, after_rounds=after_rounds) == history
    assert len(seen.history(claimed.job_id)) == 2
    assert {seen.get(job_id).stop for job_id in job_ids} == {None, stop}
    site.engine.dispose()


def test_a_job_is_told_to_programs_in_the_same_bytes_without_sqlalchemy(tmp_path: Path) -> None:
    site, seen = light(tmp_path)
    submitted(site, 0x11)
    told = [job_facts(store.all()[0], None).model_dump_json(indent=1) for store in (seen, site.store)]
    assert '"is_closed": false' in told[0]
    assert told[0] == told[1]
    site.engine.dispose()


def test_a_database_that_cannot_be_opened_is_left_to_what_says_so_plainly(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["n" * 100] * 6)  # a path that is too long for SQLite, and not for the system
    folder.mkdir(parents=True)
    (folder / FILE_NAME).touch(mode=0o600)
    assert jobs_in(folder) is None
    with pytest.raises(InvalidTask, match="cannot use the database of the ad server"):
        open_store(folder, None)


@pytest.mark.parametrize(("typed", "name"), [("wide", "wide"), ("wide,", "wide, slow"), ("Ü%", "Ü%")])
def test_a_job_is_found_by_the_same_names_without_sqlalchemy(tmp_path: Path, typed: str, name: str) -> None:
    site, seen = light(tmp_path)
    ids = named(site, x11="wide", x12="wide, slow", x13="Ü%")
    assert seen.find(typed).job_id == site.store.find(typed).job_id == ids[name]
    site.engine.dispose()


@pytest.mark.parametrize("prefix", ["1", "ff", "", "no hex", "twin", "twin\0", "\udcff", "TWIN"])
def test_a_job_is_refused_in_the_same_words_without_sqlalchemy(tmp_path: Path, prefix: str) -> None:
    site, seen = light(tmp_path)
    named(site, x21="twin 1", x22="twin 2")
    for number in (0x11, 0x12):
        submitted(site, number)
    told = []
    for store in (seen, site.store):
        with pytest.raises(JobRefused) as refusal:
            store.find(prefix)
        told.append((refusal.value.reason, str(refusal.value)))
    assert told[0] == told[1]
    with pytest.raises(JobRefused):
        seen.get(UNKNOWN)
    site.engine.dispose()


def test_a_database_of_another_version_is_not_read_without_its_migrations(tmp_path: Path) -> None:
    site, _ = light(tmp_path)
    with site.engine.begin() as connection:
        connection.execute(update(metadata.tables["schema_version"]).values(version=SCHEMA_VERSION - 1))
    site.engine.dispose()
    assert jobs_in(tmp_path) is None
    assert jobs_in(tmp_path / "none") is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / FILE_NAME).write_bytes(b"no database")
    assert jobs_in(tmp_path / "other") is None


@pytest.mark.parametrize("ask", ["get", "cancel", "resume"])
def test_an_unknown_job_is_refused(site: Site, ask: str) -> None:
    with pytest.raises(JobRefused) as refusal:
        getattr(site.store, ask)(UNKNOWN)
    assert refusal.value.reason is JobReason.UNKNOWN_JOB


def test_a_claimed_job_is_nobody_elses_until_its_lease_ends(site: Site) -> None:
    job_id = submitted(site)
    claimed = leases(site).claim()
    assert claimed is not None
    assert (claimed.job_id, claimed.state) == (job_id, JobState.RUNNING)
    site.clock.now_s += LEASE_S - 1
    assert leases(site, "two").claim() is None
    assert leases(site).renew(job_id)
    site.clock.now_s += LEASE_S - 1
    assert leases(site, "two").claim() is None
    site.clock.now_s += 1
    taken = leases(site, "two").claim()
    assert taken is not None
    assert not leases(site).renew(job_id)
    assert not leases(site).is_held(job_id)
    assert leases(site, "two").is_held(job_id)


def test_two_workers_never_claim_the_same_job(site: Site) -> None:
    for number in range(8):
        submitted(site, number + 1)
    claimed: list[JobRecord] = []
    together = Barrier(4)

    def claim_all(owner: str) -> None:
        together.wait()
        while (job := leases(site, owner).claim()) is not None:
            claimed.append(job)

    workers = [Thread(target=claim_all, args=(f"worker {number}",)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HANGS_S)
    assert sorted(job.job_id for job in claimed) == [bytes([number + 1]) * 16 for number in range(8)]


def test_a_worker_without_the_lease_changes_nothing(site: Site) -> None:
    job_id = submitted(site)
    leases(site).claim()
    other = leases(site, "two")
    changes: list[Callable[[], None]] = [
        lambda: other.record(job_id, RoundFigures(rounds_done=1, finished_at_s=0.0)),
        lambda: other.wait(job_id, Stop(reason="r", cause="c")),
        lambda: other.go_on(job_id),
        lambda: other.let_go(job_id, JobEvent.FINISH),
    ]
    for change in changes:
        with pytest.raises(JobRefused) as refusal:
            change()
        assert refusal.value.reason is JobReason.CANCELLED
    assert (site.store.get(job_id).state, site.store.history(job_id)) == (JobState.RUNNING, ())


def test_figures_of_a_round_that_is_run_again_replace_the_old_ones(site: Site) -> None:
    job_id = submitted(site)
    held = leases(site)
    held.claim()
    rounds = [
        RoundFigures(rounds_done=number, finished_at_s=1.0, gradient_norm=0.5, noise_to_signal=None)
        for number in (1, 2)
    ]
    again = RoundFigures(
        rounds_done=2, finished_at_s=9.0, learning_rate=0.1, loss=0.25, accuracy=1.0, auc=0.75
    )
    for figures in (*rounds, again):
        held.record(job_id, figures)
    assert site.store.history(job_id) == (rounds[0], again)
    assert site.store.history(job_id, after_rounds=1) == (again,)
    assert site.store.get(job_id).rounds_done == 2


def test_cancelling_takes_the_job_from_its_worker(site: Site) -> None:
    job_id = submitted(site)
    held = leases(site)
    held.claim()
    site.store.cancel(job_id)
    assert not held.is_held(job_id)
    assert [job.job_id for job in held.to_close()] == [job_id]
    held.mark_closed(job_id, rounds_charged=1)
    assert held.to_close() == ()
    with pytest.raises(JobRefused) as refusal:
        site.store.resume(job_id)
    assert refusal.value.reason is JobReason.WRONG_STATE


def test_a_job_that_is_cancelled_while_it_waits_has_not_stopped_for_what_it_waited_for(site: Site) -> None:
    job_id = submitted(site)
    held = leases(site)
    held.claim()
    held.wait(job_id, Stop(reason="helper_unavailable", cause="helper 1 does not answer"))
    site.store.cancel(job_id)
    assert (site.store.get(job_id).state, site.store.get(job_id).stop) == (JobState.CANCELLED, None)


def test_a_stopped_job_keeps_its_cause_until_it_is_resumed(site: Site) -> None:
    job_id = submitted(site)
    held = leases(site)
    held.claim()
    stop = Stop(reason="budget_exhausted", cause="nothing is left")
    held.let_go(job_id, JobEvent.REFUSE, stop)
    assert (site.store.get(job_id).state, site.store.get(job_id).stop) == (JobState.REFUSED, stop)
    assert held.claim() is None
    assert held.to_close() == ()
    site.store.resume(job_id)
    assert (site.store.get(job_id).state, site.store.get(job_id).stop) == (JobState.QUEUED, None)
    assert held.claim() is not None


def test_a_job_on_which_worker_after_worker_dies_fails_with_that_cause(site: Site) -> None:
    job_id = submitted(site)
    for number in range(MAX_WORKERS_LOST):
        assert leases(site, f"worker {number}").claim() is not None
        site.clock.now_s += LEASE_S + 1
    assert leases(site, "the next one").claim() is None
    job = site.store.get(job_id)
    assert job.state is JobState.FAILED
    assert job.stop is not None
    assert job.stop.reason == WORKERS_LOST
    assert leases(site, "the one after").claim() is None
    site.store.resume(job_id)  # a person may try again
    assert leases(site, "another").claim() is not None


def test_a_job_whose_worker_is_gone_is_queued_again_by_one_that_is_busy_with_another(site: Site) -> None:
    first, second = submitted(site, 1), submitted(site, 2)
    assert leases(site, "killed soon").claim() is not None
    busy = leases(site, "busy")
    claimed = busy.claim()
    assert claimed is not None
    lost, held = (one for one in (first, second) if one != claimed.job_id), claimed.job_id
    site.clock.now_s += LEASE_S - 1
    assert busy.renew(held)
    busy.release_abandoned()
    assert {site.store.get(job_id).state for job_id in (first, second)} == {JobState.RUNNING}
    site.clock.now_s += 2
    busy.release_abandoned()
    assert [site.store.get(job_id).state for job_id in (*lost, held)] == [JobState.QUEUED, JobState.RUNNING]
    assert busy.is_held(held)


def test_a_round_in_between_shows_that_the_job_does_not_kill_its_workers(site: Site) -> None:
    job_id = submitted(site)
    for number in range(3 * MAX_WORKERS_LOST):
        worker = leases(site, f"worker {number}")
        assert worker.claim() is not None
        worker.record(job_id, RoundFigures(rounds_done=number, finished_at_s=0.0))
        site.clock.now_s += LEASE_S + 1
    assert site.store.get(job_id).state is JobState.RUNNING


def test_a_lease_is_over_at_its_last_moment_and_not_before(site: Site) -> None:
    job_id, one = submitted(site), leases(site)
    assert one.claim() is not None
    for after_s, state in ((LEASE_S - 0.5, JobState.RUNNING), (0.5, JobState.QUEUED)):
        site.clock.now_s += after_s
        leases(site, "two").release_abandoned()
        assert site.store.get(job_id).state is state
    assert not one.is_held(job_id)


def test_who_looks_for_a_job_locks_one_and_waits_for_none_that_another_has_locked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(site, 1), submitted(site, 2)
    locked, lock = list[tuple[dict[str, Any], Any]](), Select.with_for_update

    def recorded(statement: Select[Any], **how: Any) -> Select[Any]:
        locked.append((how, statement._limit))
        return lock(statement, **how)

    monkeypatch.setattr(Select, "with_for_update", recorded)
    assert leases(site).claim() is not None
    assert [locked[0]] == [({"skip_locked": True}, 1)]
    locked.clear()
    site.clock.now_s += LEASE_S
    leases(site, "two").release_abandoned()
    assert [locked[0]] == [({"skip_locked": True}, None)]
