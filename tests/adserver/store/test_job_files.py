"""A job's files in rows, and checkpoints in a folder beside SQLite: one contract, and the way into rows."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import event, func, select

from adserver.records.job_state import JobState
from adserver.store import job_files as job_files_module
from adserver.store.job_files import JobFiles
from adserver.store.job_folder import JobFolder
from adserver.store.schema import job_files
from adserver.training.export import export_job
from maskedlark.errors import JobReason, JobRefused
from maskedlark.runtime.database import open_database
from tests.adserver.job_world import Killed, Site, plan_for, sealed
from tests.patience import HANGS_S
from tests.postgres import Postgres

OF = sealed()
JOB = bytes(range(16))
OTHER = bytes([7]) * 16
MODEL = b"a model"


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Site]:
    made = Site(tmp_path / "first", OF, url=database_url)
    yield made
    made.engine.dispose()


@pytest.fixture
def shared(tmp_path: Path, postgres: Postgres) -> Iterator[Site]:
    """An ad server on PostgreSQL."""
    made = Site(tmp_path / "first", OF, url=postgres.new_database())
    yield made
    made.engine.dispose()


@pytest.fixture
def files(site: Site) -> JobFiles:
    return JobFiles(site.engine, site.data_dir, JOB)


def kept_rounds(site: Site) -> list[int]:
    """After how many rounds the checkpoints in the database are, of all jobs; one number a part."""
    with site.engine.connect() as connection:
        asked = select(job_files.c.rounds_done).where(job_files.c.kind == "checkpoint")
        return list(connection.execute(asked).scalars())


def put(site: Site, files: JobFiles, eval_set: bytes | None) -> None:
    """Submit `MODEL`."""
    with site.engine.begin() as connection:
        files.add_submission(connection, MODEL, eval_set)


def test_what_was_submitted_is_read_back(site: Site, files: JobFiles) -> None:
    put(site, files, None)
    assert (files.model(), files.eval_set(), files.checkpoint()) == (MODEL, None, None)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 16 * 8, 16 * 9 + 1, 1_000])
def test_files_of_every_length_come_back_whole(
    site: Site, files: JobFiles, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(job_files_module, "PART_BYTES", 16)
    content = Random(size).randbytes(size)
    put(site, files, content)
    files.write_checkpoint(content, rounds_done=1)
    assert (files.eval_set(), files.checkpoint()) == (content, content)


def test_the_latest_checkpoint_counts_and_earlier_ones_go(files: JobFiles) -> None:
    for rounds_done in (1, 2, 10):
        files.write_checkpoint(b"after %d" % rounds_done, rounds_done=rounds_done)
    assert files.checkpoint() == b"after 10"


def test_a_late_writer_of_an_earlier_checkpoint_undoes_nothing(files: JobFiles) -> None:
    for rounds_done in (1, 2, 3, 2):
        files.write_checkpoint(b"after %d" % rounds_done, rounds_done=rounds_done)
    assert files.checkpoint() == b"after 3"
    files.write_checkpoint(b"after 4", rounds_done=4)
    assert files.checkpoint() == b"after 4"


def test_a_late_writer_of_an_earlier_checkpoint_leaves_nothing_behind(shared: Site) -> None:
    files = JobFiles(shared.engine, shared.data_dir, JOB)
    for rounds_done in (1, 3, 2):
        files.write_checkpoint(b"x", rounds_done=rounds_done)
    assert kept_rounds(shared) == [3]


@pytest.mark.parametrize("rounds_done", [2, 3], ids=["the same round", "a later one"])
def test_a_writer_that_stands_still_does_not_hold_its_successor_up(shared: Site, rounds_done: int) -> None:
    elsewhere = open_database(str(shared.url))
    first, second = (JobFiles(engine, shared.data_dir, JOB) for engine in (shared.engine, elsewhere))
    first.write_checkpoint(b"after 1", rounds_done=1)
    with shared.engine.connect() as standing, ThreadPoolExecutor(1) as pool:
        first._put_checkpoint(standing, b"after 2", rounds_done=2)  # and it stops before it commits
        written = pool.submit(second.write_checkpoint, b"theirs", rounds_done=rounds_done)
        try:
            assert wait([written], HANGS_S).done
        finally:
            standing.invalidate()
    assert (second.checkpoint(), kept_rounds(shared)) == (b"theirs", [rounds_done])
    elsewhere.dispose()


def test_a_model_that_is_not_there_is_a_refusal(files: JobFiles) -> None:
    with pytest.raises(JobRefused, match="contains no files") as refusal:
        files.model()
    assert refusal.value.reason is JobReason.WRONG_STATE


def test_a_job_without_files_is_refused_when_a_worker_takes_it(shared: Site, tmp_path: Path) -> None:
    shared.store.submit(plan_for(OF, job_id=JOB))
    assert shared.worker(data_dir=tmp_path / "another machine").run_one()
    job = shared.store.get(JOB)
    assert (job.state, job.stop and job.stop.reason) == (JobState.REFUSED, JobReason.WRONG_STATE)
    with pytest.raises(JobRefused, match="were deleted"):
        export_job(JobFiles(shared.engine, tmp_path / "another machine", JOB), plan_for(OF))


@pytest.mark.parametrize("fails_at", ["INSERT INTO jobs", "COMMIT"])
def test_a_job_that_is_not_stored_leaves_no_file(site: Site, fails_at: str) -> None:
    def fail(*of_event: Any) -> None:
        if fails_at == "COMMIT" or of_event[2].startswith(fails_at):
            raise Killed

    event.listen(site.engine, "commit" if fails_at == "COMMIT" else "before_cursor_execute", fail)
    with pytest.raises(Killed):
        site.submit(plan_for(OF), b"held out")
    event.remove(site.engine, "commit" if fails_at == "COMMIT" else "before_cursor_execute", fail)
    with site.engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(job_files)).scalar() == 0
    assert site.store.all() == ()


def test_one_job_does_not_see_anothers_files(site: Site) -> None:
    first, second = (JobFiles(site.engine, site.data_dir, one) for one in (JOB, OTHER))
    first.write_checkpoint(b"first", rounds_done=5)
    second.write_checkpoint(b"second", rounds_done=6)
    assert (first.checkpoint(), second.checkpoint()) == (b"first", b"second")


def test_a_checkpoint_that_goes_while_it_is_read_gives_way_to_the_next(
    shared: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = JobFiles(shared.engine, shared.data_dir, JOB)
    files.write_checkpoint(b"after 1", rounds_done=1)
    read: Callable[[JobFiles, str, int], bytes | None] = JobFiles._read

    def late(self: JobFiles, kind: str, rounds_done: int) -> bytes | None:
        monkeypatch.setattr(JobFiles, "_read", read)
        files.write_checkpoint(b"after 2", rounds_done=2)
        return read(self, kind, rounds_done)

    monkeypatch.setattr(JobFiles, "_read", late)
    assert files.checkpoint() == b"after 2"


def test_only_the_last_checkpoint_takes_room(shared: Site) -> None:
    files = JobFiles(shared.engine, shared.data_dir, JOB)
    for rounds_done in range(5):
        files.write_checkpoint(b"x", rounds_done=rounds_done)
    assert kept_rounds(shared) == [4]


def test_beside_sqlite_no_checkpoint_is_in_the_database(tmp_path: Path) -> None:
    site = Site(tmp_path, OF)
    JobFiles(site.engine, tmp_path, JOB).write_checkpoint(b"after 1", rounds_done=1)
    assert kept_rounds(site) == []
    site.engine.dispose()


def test_a_copy_of_a_checkpoint_under_another_name_is_no_checkpoint(site: Site) -> None:
    folder = JobFolder(site.data_dir, JOB)
    folder.write_checkpoint(b"after 3", rounds_done=3)
    for name in ("checkpoint-best.npz", "checkpoint-00000003.npz.bak", "checkpoint-00000009 (copy).npz"):
        (folder.path / name).write_bytes(b"a copy")
    assert folder.checkpoint() == b"after 3"
