"""A job's files, in a folder beside SQLite and in rows of PostgreSQL: one contract, and the way into rows."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import func, select

from adserver.store import job_rows
from adserver.store.job_files import JobFiles, files_of, take_in_all
from adserver.store.job_folder import JobFolder
from adserver.store.job_rows import JobRows
from adserver.store.schema import job_files
from tests.adserver.job_world import Site, plan_for, sealed
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


@pytest.fixture(params=["as the database wants it", "rows"])
def files(site: Site, request: pytest.FixtureRequest) -> JobFiles:
    """A folder beside SQLite, rows in PostgreSQL, and rows in both."""
    if request.param == "rows":
        return JobRows(site.engine, JOB, site.data_dir)
    return files_of(site.engine, site.data_dir, JOB)


def test_what_was_submitted_is_read_back(files: JobFiles) -> None:
    files.write_submission(MODEL, None)
    assert (files.model(), files.eval_set(), files.checkpoint()) == (MODEL, None, None)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 16 * 8, 16 * 9 + 1, 1_000])
def test_files_of_every_length_come_back_whole(
    files: JobFiles, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(job_rows, "PART_BYTES", 16)
    content = Random(size).randbytes(size)
    files.write_submission(MODEL, content)
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


def test_a_model_that_is_not_there_is_a_missing_file(files: JobFiles) -> None:
    with pytest.raises(FileNotFoundError):
        files.model()


def test_one_job_does_not_see_anothers_files(site: Site) -> None:
    first, second = (files_of(site.engine, site.data_dir, one) for one in (JOB, OTHER))
    first.write_checkpoint(b"first", rounds_done=5)
    second.write_checkpoint(b"second", rounds_done=6)
    assert (first.checkpoint(), second.checkpoint()) == (b"first", b"second")


def test_a_checkpoint_that_goes_while_it_is_read_gives_way_to_the_next(
    shared: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = JobRows(shared.engine, JOB, shared.data_dir)
    files.write_checkpoint(b"after 1", rounds_done=1)
    read: Callable[[JobRows, str, int], bytes | None] = JobRows._read

    def late(self: JobRows, kind: str, rounds_done: int) -> bytes | None:
        monkeypatch.setattr(JobRows, "_read", read)
        files.write_checkpoint(b"after 2", rounds_done=2)
        return read(self, kind, rounds_done)

    monkeypatch.setattr(JobRows, "_read", late)
    assert files.checkpoint() == b"after 2"


def test_only_the_last_checkpoint_takes_room(shared: Site) -> None:
    files = JobRows(shared.engine, JOB, shared.data_dir)
    for rounds_done in range(5):
        files.write_checkpoint(b"x", rounds_done=rounds_done)
    with shared.engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(job_files)).scalar() == 1


def test_beside_sqlite_nothing_large_is_in_the_database(tmp_path: Path) -> None:
    site = Site(tmp_path, OF)
    files = files_of(site.engine, tmp_path, JOB)
    files.write_submission(MODEL, MODEL)
    assert isinstance(files, JobFolder)
    with site.engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(job_files)).scalar() == 0
    site.engine.dispose()


def old_folder(site: Site, name: str = "checkpoint-00000003.pt") -> JobFolder:
    """A stored job whose files are in the data folder, as an older version left them."""
    site.store.submit(plan_for(OF, job_id=JOB))
    folder = JobFolder(site.data_dir, JOB)
    folder.write_submission(MODEL, b"held out")
    (folder.path / name).write_bytes(b"after 3")
    (folder.path / "curves.csv").write_bytes(b"")
    return folder


@pytest.mark.parametrize("name", ["checkpoint-00000003.npz", "checkpoint-00000003.pt"])
def test_a_folder_of_an_older_version_comes_into_postgresql(shared: Site, tmp_path: Path, name: str) -> None:
    folder = old_folder(shared, name)
    take_in_all(shared.engine, shared.data_dir)
    elsewhere = files_of(shared.engine, tmp_path / "another machine", JOB)
    assert (elsewhere.model(), elsewhere.eval_set()) == (MODEL, b"held out")
    assert elsewhere.checkpoint() == b"after 3"
    elsewhere.write_checkpoint(b"after 4", rounds_done=4)
    assert elsewhere.checkpoint() == b"after 4"
    assert [path.name for path in folder.path.iterdir()] == ["curves.csv"]


def test_a_job_that_nobody_took_in_is_taken_in_when_it_is_read(shared: Site) -> None:
    old_folder(shared)
    assert files_of(shared.engine, shared.data_dir, JOB).checkpoint() == b"after 3"


def test_a_folder_that_is_left_over_does_not_bring_an_old_checkpoint_back(shared: Site) -> None:
    folder = old_folder(shared)
    files = files_of(shared.engine, shared.data_dir, JOB)
    files.write_checkpoint(b"after 4", rounds_done=4)
    folder.write_submission(b"not the model", None)  # as if it had ended between taking in and removing
    folder.write_checkpoint(b"later, and of nobody", rounds_done=9)
    again = files_of(shared.engine, shared.data_dir, JOB)
    assert (again.model(), again.checkpoint()) == (MODEL, b"after 4")
    assert folder.submission() is None


def test_a_folder_of_a_job_that_is_not_in_the_database_stays(shared: Site) -> None:
    folder = JobFolder(shared.data_dir, OTHER)
    folder.write_submission(MODEL, None)
    (shared.data_dir / "jobs" / "not a job").mkdir()
    (shared.data_dir / "jobs" / "not a job" / "model.onnx").write_bytes(MODEL)
    take_in_all(shared.engine, shared.data_dir)
    assert folder.model() == MODEL
    with pytest.raises(FileNotFoundError):
        files_of(shared.engine, shared.data_dir / "elsewhere", OTHER).model()


def test_servers_that_start_at_once_take_a_folder_in_once(shared: Site) -> None:
    old_folder(shared)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: take_in_all(shared.engine, shared.data_dir), range(4)))
    found = files_of(shared.engine, shared.data_dir, JOB)
    assert (found.model(), found.eval_set(), found.checkpoint()) == (MODEL, b"held out", b"after 3")
