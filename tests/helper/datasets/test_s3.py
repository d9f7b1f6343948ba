"""A small dataset and a round over a server that speaks S3."""

from pathlib import Path

import httpx
import pytest

from helper.datasets import segments
from maskedlark.errors import HelperUnavailable
from maskedlark.runtime import objects
from maskedlark.runtime.bucket import open_bucket
from maskedlark.runtime.objects import ObjectExists, StoreFailed
from tests.helper.parties import Scene
from tests.patience import HANGS_S

pytest.importorskip("obstore", reason="needs the extra cluster")


def test_a_dataset_in_s3_is_sealed_summed_and_swept(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    assert httpx.put(f"{s3}/bucket", timeout=HANGS_S).is_success
    store = open_bucket("s3://bucket/some/prefix")
    store.put("f/a", b"first")
    with pytest.raises(ObjectExists):
        store.put("f/a", b"second")
    scene = Scene(tmp_path)
    scene.restart(segments=store)
    dataset = scene.seal(10)
    for core in scene.cores:
        core.datasets.kept.capacity_bytes = 0
        core.sweeper.sweep()
    folders = [core.datasets.vault._folder for core in scene.cores]
    listed = [[one.name for page in store.list(folder) for one in page] for folder in folders]
    assert [len(names) for names in listed] == [6, 6]
    spec = scene.job(dataset)
    scene.start(spec)
    assert scene.run(spec, 0).tolist() == scene.plain_sum(10)
    store.delete(listed[0])
    assert not list(store.list(folders[0]))
    elsewhere = open_bucket("s3://no-such-bucket/prefix")
    with pytest.raises(StoreFailed, match="bucket"):
        elsewhere.get(listed[1][0], 1)
    with pytest.raises(StoreFailed):
        list(elsewhere.list(folders[1]))
    monkeypatch.setattr(objects, "FIRST_WAIT_S", 0.0)
    scene.restart(segments=elsewhere)
    with pytest.raises(HelperUnavailable):
        scene.prepare(scene.reports(10, seed=1))
