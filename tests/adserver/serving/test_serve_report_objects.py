"""`adserver serve --report-objects`: it makes the bucket known, and sweeps it."""

import time
from pathlib import Path
from threading import Event, Thread

import pytest

from adserver.peers.connect import Peers
from adserver.records.server_settings import AdserverSettings, IntakeSettings
from adserver.serving.server import serve
from adserver.store.database import open_store
from adserver.store.report_buckets import ReportBucket
from maskedlark.errors import InvalidTask
from maskedlark.runtime.objects import Retrying
from tests.builders import NOW
from tests.patience import HANGS_S
from tests.stores import InMemory

URL = "s3://reports/prefix"


def test_a_server_makes_its_bucket_known_and_removes_what_no_row_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, is_there, stop = InMemory(), Event(), Event()
    memory.put("elsewhere/object", b"of another server")

    def opened(bucket: ReportBucket) -> Retrying:
        if not is_there.is_set():
            memory.put(f"{bucket.folder}/orphan", b"of long ago")
            is_there.set()
        return Retrying(memory)

    monkeypatch.setattr(ReportBucket, "open", opened)
    engine = open_store(tmp_path / "data", None)
    with pytest.raises(InvalidTask, match="first start its `serve`"):
        ReportBucket.of(engine, URL, may_add=False)
    settings = AdserverSettings(data_dir=tmp_path / "data", intake=IntakeSettings(report_objects=URL))
    peers = Peers(addresses=("127.0.0.1:1", "127.0.0.1:1"), tls=None, deadline_s=1.0)
    thread = Thread(
        target=serve, args=(engine, peers, settings), kwargs={"clock": lambda: NOW, "stop": stop}, daemon=True
    )
    thread.start()
    try:
        until = time.monotonic() + HANGS_S
        while not is_there.is_set() or len(memory.objects) != 1:
            assert thread.is_alive()
            assert time.monotonic() < until
            thread.join(0.01)
        assert list(memory.objects) == ["elsewhere/object"]
    finally:
        stop.set()
        thread.join(HANGS_S)
    assert ReportBucket.of(engine, URL, may_add=False).url == URL
    engine.dispose()
