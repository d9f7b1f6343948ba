from pathlib import Path
from threading import Event

import pytest

from adserver.dashboard.address import ADDRESS_FILE
from adserver.peers.connect import Peers
from adserver.records.server_settings import AdserverSettings, DashboardSettings, IntakeSettings
from adserver.serving.server import serve
from adserver.store.database import open_store
from maskedlark.errors import InvalidSetting
from maskedlark.runtime.folder_lock import only_process
from tests.builders import NOW


def test_an_ad_server_does_not_serve_from_a_folder_that_others_may_write_into(tmp_path: Path) -> None:
    engine = open_store(tmp_path / "data", None)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    (tmp_path / "data").chmod(0o777)
    peers = Peers(addresses=("127.0.0.1:1", "127.0.0.1:1"), tls=None, deadline_s=1.0)
    settings = AdserverSettings(data_dir=tmp_path / "data", intake=IntakeSettings())
    with pytest.raises(InvalidSetting, match="others may write into"):
        serve(engine, peers, settings, clock=lambda: NOW, stop=Event())
    engine.dispose()


def test_a_server_with_a_database_elsewhere_makes_its_data_folder_too(tmp_path: Path) -> None:
    engine = open_store(tmp_path / "new" / "data", f"sqlite:///{tmp_path / 'elsewhere.sqlite3'}")
    assert (tmp_path / "new" / "data").stat().st_mode & 0o777 == 0o700
    engine.dispose()


def test_a_second_server_over_one_sqlite_database_is_refused(tmp_path: Path) -> None:
    engine = open_store(tmp_path / "data", None)
    peers = Peers(addresses=("127.0.0.1:1", "127.0.0.1:1"), tls=None, deadline_s=1.0)
    settings = AdserverSettings(data_dir=tmp_path / "data", intake=IntakeSettings())
    stopped = Event()
    stopped.set()
    with (
        only_process(tmp_path / "data", "`adserver serve`", ""),
        pytest.raises(InvalidSetting, match=r"another `adserver serve` process .* PostgreSQL"),
    ):
        serve(engine, peers, settings, clock=lambda: NOW, stop=stopped)
    serve(engine, peers, settings, clock=lambda: NOW, stop=stopped)
    engine.dispose()


@pytest.mark.parametrize("dashboard", [None, DashboardSettings(listen="127.0.0.1:0")])
def test_no_dashboard_has_an_address_after_its_server(
    tmp_path: Path, dashboard: DashboardSettings | None
) -> None:
    engine = open_store(tmp_path / "data", None)
    peers = Peers(addresses=("127.0.0.1:1", "127.0.0.1:1"), tls=None, deadline_s=1.0)
    settings = AdserverSettings(data_dir=tmp_path / "data", intake=IntakeSettings(), dashboard=dashboard)
    stopped = Event()
    stopped.set()
    # Of a server that was killed
    (tmp_path / "data" / ADDRESS_FILE).write_text("http://127.0.0.1:1\n")
    serve(engine, peers, settings, clock=lambda: NOW, stop=stopped)
    assert not (tmp_path / "data" / ADDRESS_FILE).exists()
    engine.dispose()
