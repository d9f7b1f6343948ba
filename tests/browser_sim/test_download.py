from hashlib import sha256
from pathlib import Path

import pytest

from browser_sim.download import MNIST_FILES, IdxFile, download
from browser_sim.source import InvalidSource
from browser_sim.sources.mnist import default_folder
from maskedlark.encoding.idx import unpack
from tests.browser_sim.idx import pack
from tests.browser_sim.sinks import http_sink

CONTENT = b"idx content" * 100
WANTED = (IdxFile(name="some-ubyte", digest=sha256(CONTENT).hexdigest()),)


def test_a_right_file_is_kept_as_it_came(tmp_path: Path) -> None:
    with http_sink(files={"/mnist/some-ubyte.gz": pack(CONTENT)}) as url:
        download(tmp_path / "new", mirrors=[f"{url}/mnist/"], files=WANTED)
    assert (tmp_path / "new" / "some-ubyte.gz").read_bytes() == pack(CONTENT)


@pytest.mark.parametrize("served", [pack(CONTENT + b"x"), b"no gzip", pack(CONTENT)[:-9], b""])
def test_a_wrong_file_is_refused_and_nothing_is_left(tmp_path: Path, served: bytes) -> None:
    with (
        http_sink(files={"/some-ubyte.gz": served}) as url,
        pytest.raises(InvalidSource, match="does not have the expected SHA-256"),
    ):
        download(tmp_path, mirrors=[url], files=WANTED)
    assert list(tmp_path.iterdir()) == []


def test_the_next_mirror_is_asked_when_one_is_wrong_or_away(tmp_path: Path) -> None:
    files = {"/wrong/some-ubyte.gz": pack(b"other"), "/right/some-ubyte.gz": pack(CONTENT)}
    with http_sink(files=files) as url:
        download(
            tmp_path,
            mirrors=["http://127.0.0.1:1", f"{url}/absent", f"{url}/wrong", f"{url}/right"],
            files=WANTED,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["some-ubyte.gz"]


def test_a_file_that_is_there_and_right_is_not_fetched_and_a_damaged_one_is(tmp_path: Path) -> None:
    path = tmp_path / "some-ubyte.gz"
    path.write_bytes(pack(CONTENT))
    download(tmp_path, mirrors=[], files=WANTED)
    path.write_bytes(b"damaged")
    with pytest.raises(InvalidSource):
        download(tmp_path, mirrors=[], files=WANTED)
    with http_sink(files={"/some-ubyte.gz": pack(CONTENT)}) as url:
        download(tmp_path, mirrors=[url], files=WANTED)
    assert path.read_bytes() == pack(CONTENT)


@pytest.mark.skipif(not default_folder().is_dir(), reason="MNIST is not on this machine")
def test_the_checksums_are_those_of_the_real_files() -> None:
    for wanted in MNIST_FILES:
        packed = (default_folder() / f"{wanted.name}.gz").read_bytes()
        assert sha256(unpack(packed, wanted.name)).hexdigest() == wanted.digest
