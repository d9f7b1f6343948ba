"""Yesterday's ledger is noticed, whoever brings it back and whatever else they bring back with it."""

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, event
from typer.testing import CliRunner

from adserver.peers.client import HelperClient
from adserver.store.database import create_tables
from adserver.store.receipts import ReceiptBook
from helper.cli.main import app
from helper.cli.status import fetch_status
from helper.core import HelperCore
from helper.ledger.ledger import Ledger
from helper.ledger.witness import FILE_NAME, Witness
from maskedlark import canonical
from maskedlark.audit_log import THIS_SERVICE, AuditAct, Deed
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.releases.job import JobSpec
from maskedlark.rpc.receipts import Receipt
from maskedlark.runtime.database import open_database
from tests.helper.parties import MODEL, NUM_VALUES, OTHER_WEIGHTS, WEIGHTS, Scene
from tests.helper.served import served
from tests.patience import HANGS_S
from tests.postgres import Postgres
from tests.refusals import refused as refused_by_helper

REFUSED = Deed(act=AuditAct.ANSWER_ROUND, actor=THIS_SERVICE, outcome="refused")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@contextmanager
def serving(core: HelperCore, book: ReceiptBook | None = None) -> Iterator[HelperClient]:
    """A helper behind a port; the ad server knows it by the same name wherever it serves."""
    with served(core) as address, HelperClient(address, None, HANGS_S, Renamed(book)) as client:
        yield client


class Renamed(ReceiptBook):
    """Every port is the same helper's address."""

    def __init__(self, book: ReceiptBook | None) -> None:
        self._book = book or ReceiptBook()

    def newest(self, address: str) -> Receipt | None:
        return self._book.newest("north")

    def keep(self, address: str, receipt: Receipt) -> None:
        self._book.keep("north", receipt)


def closed(scene: Scene) -> Path:
    """The first helper's folder, while no process has its ledger open."""
    scene.cores[0]._ledger.close()
    return scene.parties[0].data


def saved(scene: Scene, to: Path, pattern: str = "*") -> Path:
    to.mkdir()
    for path in closed(scene).glob(pattern):
        if path.is_file():
            shutil.copy2(path, to)
    return to


def brought_back(scene: Scene, saved_at: Path, pattern: str = "*") -> HelperCore:
    """The first helper, on what was saved."""
    for path in closed(scene).glob(pattern):
        if path.is_file():
            path.unlink()
    for path in saved_at.iterdir():
        shutil.copy2(path, scene.parties[0].data)
    return scene.parties[0].open()


def refused(core: HelperCore, shown: bytes | None = None) -> bool:
    try:
        core.witness.check(shown)
    except JobRefused as refusal:
        return refusal.reason is JobReason.LEDGER_ROLLED_BACK
    return False


def test_a_restored_ledger_file_is_noticed_before_a_round_is_answered_twice(
    scene: Scene, tmp_path: Path
) -> None:
    spec = scene.job(scene.seal())
    with serving(scene.cores[0]) as client:
        client.start_job(spec, MODEL)
    yesterday = saved(scene, tmp_path / "yesterday", "ledger*")
    with serving(scene.parties[0].open()) as client:
        client.run_round(spec, 0, WEIGHTS, NUM_VALUES)
    with serving(brought_back(scene, yesterday, "ledger*")) as client, pytest.raises(JobRefused) as refusal:
        client.run_round(spec, 0, OTHER_WEIGHTS, NUM_VALUES)
    assert refusal.value.reason is JobReason.LEDGER_ROLLED_BACK


def test_the_budgets_of_an_older_ledger_are_shown_with_a_warning(scene: Scene, tmp_path: Path) -> None:
    def warned() -> bool:
        result = CliRunner().invoke(
            app, ["budget", "--json", "--data", str(scene.parties[0].data)], catch_exceptions=False
        )
        assert len(json.loads(result.stdout)) == 1
        return "warning: the ledger is older than" in result.stderr

    spec = scene.job(scene.seal())
    yesterday = saved(scene, tmp_path / "yesterday", "ledger*")
    assert not warned()
    with serving(scene.parties[0].open()) as client:
        client.start_job(spec, MODEL)
    assert not warned()
    brought_back(scene, yesterday, "ledger*")
    assert warned()


def test_a_whole_restored_folder_is_noticed_when_the_ad_server_shows_its_receipt_and_from_then_on(
    scene: Scene, tmp_path: Path
) -> None:
    spec, book = scene.job(scene.seal()), ReceiptBook()
    with serving(scene.cores[0], book) as client:
        client.start_job(spec, MODEL)
    yesterday = saved(scene, tmp_path / "yesterday")
    with serving(scene.parties[0].open(), book) as client:
        client.run_round(spec, 0, WEIGHTS, NUM_VALUES)
    core = brought_back(scene, yesterday)
    assert not refused(core)  # nobody has shown it anything yet
    core.check_well()
    with serving(core, book) as client, pytest.raises(JobRefused) as refusal:
        client.run_round(spec, 0, OTHER_WEIGHTS, NUM_VALUES)
    assert refusal.value.reason is JobReason.LEDGER_ROLLED_BACK
    assert refused(core)  # whoever asks
    with pytest.raises(JobRefused):
        core.check_well()  # so that /healthz says so
    assert refused(scene.parties[0].open())  # and after a restart


def test_a_status_shows_the_receipt_too_and_says_that_the_ledger_was_rolled_back(
    scene: Scene, tmp_path: Path
) -> None:
    spec, book = scene.job(scene.seal()), ReceiptBook()
    yesterday = saved(scene, tmp_path / "yesterday")
    with serving(scene.parties[0].open(), book) as client:
        assert client.status().not_well == ""
        client.start_job(spec, MODEL)
        assert client.status().not_well == ""
    core = brought_back(scene, yesterday)
    core.check_well()  # nobody has shown it anything yet
    with serving(core, book) as client:
        said = client.status().not_well
        assert re.fullmatch(
            r"helper at \S+ is not well: .* ledger is older than its earlier answers: .*", said
        )
    with pytest.raises(JobRefused):
        core.check_well()  # so that /healthz says so from then on
    with served(core) as address:
        assert str(fetch_status(address, None, deadline_s=HANGS_S)["well"]).startswith(
            "no: this helper's ledger"
        )


def replace_below(core: HelperCore, data: Path, saved_at: Path) -> None:
    """Replace the ledger of a helper that is at work."""
    core.ledger.close()
    for path in data.glob("ledger*"):
        path.unlink()
    for path in saved_at.iterdir():
        shutil.copy2(path, data)


@pytest.mark.parametrize("others", [0, 2])
def test_a_commit_that_is_lost_before_the_witness_has_it_is_not_answered_and_noticed_from_then_on(
    scene: Scene, others: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older copy holds all at which the ledger was seen: only this process knows of its commit.

    Acts of other threads may bring the copy past it meanwhile.
    """
    core, data = scene.cores[0], scene.parties[0].data
    spec = scene.job(scene.seal())
    scene.start(spec)
    core.witness.receipt()
    yesterday, receipt = saved(scene, tmp_path / "yesterday", "ledger*"), core.witness.receipt

    def lose_and_give() -> bytes:
        replace_below(core, data, yesterday)
        list(other.map(core.ledger.log, [REFUSED] * others))
        return receipt()

    with serving(core) as client, ThreadPoolExecutor(1) as other:
        for patched in (lose_and_give, receipt):
            monkeypatch.setattr(core.witness, "receipt", patched)
            with refused_by_helper(JobReason.LEDGER_ROLLED_BACK):
                client.run_round(spec, 0, WEIGHTS, NUM_VALUES)
    assert refused(scene.parties[0].open())


@pytest.mark.parametrize("act", ["a job starts", "a job ends", "a refusal is logged", "a change is logged"])
def test_an_answer_looks_up_the_witness_with_two_statements(scene: Scene, act: str) -> None:
    """Each is one on the primary key; a third one only where another call has committed meanwhile."""
    core, statements = scene.cores[0], list[str]()
    spec = scene.job(scene.seal())
    core.witness.receipt()
    if act == "a job starts":
        scene.start(spec)
    elif act == "a job ends":
        core.ledger.close_job(spec, THIS_SERVICE)
    elif act == "a refusal is logged":
        core.ledger.log(REFUSED)
    else:
        core.ledger.log_change(AuditAct.SET_FLOORS, {"epsilon": "1"})
    event.listen(core.ledger.engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    core.witness.receipt()
    assert len(statements) == 2
    assert core.ledger.committed == core.ledger.position()


def test_an_old_receipt_leaves_a_newer_witness_as_it_is(scene: Scene, tmp_path: Path) -> None:
    """A copy in between would be served otherwise: it holds the receipt, and not what was answered since."""
    spec, ledger = scene.job(scene.seal()), scene.cores[0].ledger
    older = saved(scene, tmp_path / "older", "ledger*")
    scene.start(spec)
    old = scene.cores[0].witness.receipt()
    between = saved(scene, tmp_path / "between", "ledger*")
    ledger.log(REFUSED)
    scene.cores[0].witness.receipt()
    assert refused(brought_back(scene, older, "ledger*"), old)
    assert refused(brought_back(scene, between, "ledger*"))


def test_a_ledger_that_is_rolled_back_during_calls_answers_none_of_them_and_is_noticed_from_then_on(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its database fails over to a copy that lagged.

    Two calls at once would bring the older copy past the position at which the ledger was seen.
    """
    core, data, dataset = scene.cores[0], scene.parties[0].data, scene.seal()
    asked = [scene.job(dataset, job_id=bytes([number]) * 16) for number in range(2)]
    for spec in asked:
        scene.start(spec)
    yesterday = saved(scene, tmp_path / "yesterday", "ledger*")
    all_checked = Barrier(len(asked), action=lambda: replace_below(core, data, yesterday))
    check = core.witness.check

    def check_and_wait(shown: bytes | None) -> None:
        check(shown)
        all_checked.wait(HANGS_S)

    def reason_of_refusal(spec: JobSpec) -> JobReason:
        with pytest.raises(JobRefused) as refusal:
            client.run_round(spec, 0, OTHER_WEIGHTS, NUM_VALUES)
        return refusal.value.reason

    with serving(core) as client:
        client.run_round(asked[0], 0, WEIGHTS, NUM_VALUES)
        seen = (data / FILE_NAME).read_bytes()
        with monkeypatch.context() as patched, ThreadPoolExecutor(len(asked)) as pool:
            patched.setattr(core.witness, "check", check_and_wait)
            assert set(pool.map(reason_of_refusal, asked)) == {JobReason.LEDGER_ROLLED_BACK}
        assert (data / FILE_NAME).read_bytes() == seen
        assert reason_of_refusal(asked[1]) is JobReason.LEDGER_ROLLED_BACK
    assert refused(scene.parties[0].open())


def test_a_new_ledger_under_old_keys_is_noticed(scene: Scene) -> None:
    scene.seal()
    scene.cores[0].witness.receipt()
    for path in closed(scene).glob("ledger*"):
        path.unlink()
    assert refused(scene.parties[0].open())


@dataclass(kw_only=True)
class ServerScene:
    """A scene whose first helper keeps its ledger in a PostgreSQL server.

    What a restored folder does not bring back.
    """

    postgres: Postgres
    scene: Scene
    url: str

    def opened(self, url: str) -> HelperCore:
        """The first helper's process, on one database."""

        class OnServer(Ledger):
            def __init__(self, engine: Engine) -> None:
                engine.dispose()
                super().__init__(open_database(url))

        core = self.scene.parties[0].open(ledger_type=OnServer)
        self.scene.cores = (core, self.scene.cores[1])
        return core

    def backup(self) -> str:
        """The ledger as it is now, as a database of its own; the helper's process has ended."""
        self.scene.cores[0]._ledger.close()
        return self.postgres.copy_of(self.url)

    def a_round_is_told(self, spec: JobSpec, book: ReceiptBook | None = None) -> None:
        with serving(self.opened(self.url), book) as client:
            client.run_round(spec, 0, WEIGHTS, NUM_VALUES)
        self.scene.cores[0]._ledger.close()


@pytest.fixture
def server_scene(scene: Scene, postgres: Postgres) -> Iterator[ServerScene]:
    made = ServerScene(postgres=postgres, scene=scene, url=postgres.new_database())
    closed(scene)
    made.opened(made.url).tasks.register(canonical.encode(scene.task), None)
    yield made
    scene.cores[0]._ledger.close()


def test_a_restored_postgresql_ledger_is_noticed_at_the_first_call_and_a_copied_one_is_served(
    server_scene: ServerScene,
) -> None:
    scene = server_scene.scene
    spec = scene.job(scene.seal())
    scene.start(spec)
    yesterday = server_scene.backup()
    server_scene.a_round_is_told(spec)
    today = server_scene.backup()
    assert not refused(server_scene.opened(today))
    scene.cores[0]._ledger.close()
    with serving(server_scene.opened(yesterday)) as client, pytest.raises(JobRefused) as refusal:
        client.run_round(spec, 0, OTHER_WEIGHTS, NUM_VALUES)
    assert refusal.value.reason is JobReason.LEDGER_ROLLED_BACK


def test_a_postgresql_ledger_restored_with_the_whole_folder_is_noticed_when_a_receipt_is_shown(
    server_scene: ServerScene, tmp_path: Path
) -> None:
    scene, book = server_scene.scene, ReceiptBook()
    spec = scene.job(scene.seal())
    scene.start(spec)
    yesterday, folder = server_scene.backup(), saved(scene, tmp_path / "yesterday")
    server_scene.a_round_is_told(spec, book)
    for path in folder.iterdir():
        shutil.copy2(path, scene.parties[0].data)
    if not (folder / FILE_NAME).exists():
        (scene.parties[0].data / FILE_NAME).unlink()
    core = server_scene.opened(yesterday)
    assert not refused(core)  # nobody has shown it anything yet
    with serving(core, book) as client, pytest.raises(JobRefused) as refusal:
        client.run_round(spec, 0, OTHER_WEIGHTS, NUM_VALUES)
    assert refusal.value.reason is JobReason.LEDGER_ROLLED_BACK
    assert refused(core)


def test_an_empty_postgresql_database_under_old_keys_is_noticed(server_scene: ServerScene) -> None:
    server_scene.scene.seal()
    server_scene.scene.cores[0].witness.receipt()
    server_scene.scene.cores[0]._ledger.close()
    assert refused(server_scene.opened(server_scene.postgres.new_database()))


def test_a_ledger_that_only_moved_on_is_served(scene: Scene) -> None:
    """Also after a crash between a commit and the witness's file, and for a caller with an old receipt."""
    core = scene.cores[0]
    receipts = [core.witness.receipt()]
    spec = scene.job(scene.seal())
    receipts.append(core.witness.receipt())
    scene.start(spec)
    scene.answer(0, spec, 0)
    for again in (core, scene.parties[0].open()):
        assert not any(refused(again, receipt) for receipt in (None, *receipts))


def test_the_receipt_is_on_disk_before_it_is_given(scene: Scene) -> None:
    scene.seal()
    receipt = scene.cores[0].witness.receipt()
    assert (scene.parties[0].data / FILE_NAME).read_bytes() == receipt
    assert (scene.parties[0].data / FILE_NAME).stat().st_mode & 0o077 == 0


def test_a_receipt_that_this_helper_did_not_make_says_nothing(scene: Scene) -> None:
    scene.seal()
    own, others = (Receipt.decode(core.witness.receipt()) for core in scene.cores)
    assert own is not None
    assert others is not None
    later = replace(own, sequence=own.sequence + 5)
    for forged in (others, later, replace(own, head=bytes(32)), replace(own, tag=bytes(32))):
        assert not refused(scene.cores[0], forged.encode())
    assert not refused(scene.cores[0])


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> HelperCore:
    return Scene(tmp_path_factory.mktemp("hostile")).cores[0]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shown=st.binary(max_size=200))
@example(shown=b"\xff" * 88)
def test_no_bytes_make_a_helper_refuse(core: HelperCore, shown: bytes) -> None:
    assert not refused(core, shown)


@pytest.mark.parametrize("content", [b"", b"\0" * 88, b"x" * 87])
def test_a_damaged_witness_is_not_served_from(scene: Scene, content: bytes) -> None:
    (closed(scene) / FILE_NAME).write_bytes(content)
    with pytest.raises(InvalidTask, match="damaged"):
        scene.parties[0].open()


def test_another_helpers_witness_is_not_served_from(scene: Scene) -> None:
    scene.cores[1].witness.receipt()
    with pytest.raises(InvalidTask, match="other keys"):
        Witness(
            ledger=scene.cores[0]._ledger,
            folder=scene.parties[1].data,
            key=scene.parties[0].keys.witness_key(),
        )


def test_the_ad_server_keeps_the_newest_receipt_in_its_database(database_url: str) -> None:
    engine = create_engine(database_url)
    create_tables(engine)
    made = [
        Receipt(helper_id=b"h" * 16, sequence=number, head=bytes([number]) * 32, tag=b"t" * 32)
        for number in range(4)
    ]
    first, second = ReceiptBook(engine), ReceiptBook(engine)
    for receipt in (made[1], made[3], made[2]):
        first.keep("north:1", receipt)
    second.keep("north:1", made[0])
    assert (
        first.newest("north:1")
        == second.newest("north:1")
        == ReceiptBook(engine).newest("north:1")
        == made[3]
    )
    assert first.newest("south:1") is None
    rekeyed = replace(made[0], helper_id=b"k" * 16)
    second.keep("north:1", rekeyed)
    assert ReceiptBook(engine).newest("north:1") == rekeyed
    engine.dispose()
