"""Public tables come whole and right or not at all; what is made up says so."""

import os
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from browser_sim.cli import app
from browser_sim.download_tables import TABLES, PublicData, PublicTable, _download_tables
from browser_sim.samples import ROWS, SAMPLES, write_sample
from browser_sim.source import InvalidSource
from browser_sim.sources.table import TableSettings, load_table
from tests.browser_sim.sinks import http_sink

ROW = "39, State-gov, 77516, Bachelors, 13, Never-married, Sales, Wife, White, Male, 1, 0, 40, X, "
FILES = {"one.data": f"{ROW}<=50K\n\n".encode(), "one.test": f"|1x3 Cross validator\n{ROW}>50K.\n".encode()}
DATA = PublicData(
    mirrors=("http://127.0.0.1:1",),
    tables=tuple(
        PublicTable(
            remote=name,
            digest=sha256(content).hexdigest(),
            local=f"{name}.csv",
            to_csv=TABLES["adult"].tables[0].to_csv,
        )
        for name, content in FILES.items()
    ),
)


def served(**changes: bytes) -> dict[str, bytes]:
    return {f"/{name}": changes.get(name[4:], content) for name, content in FILES.items()}


def test_tables_get_a_header_and_one_line_a_row(tmp_path: Path) -> None:
    told: list[str] = []
    with http_sink(files=served()) as url:
        _download_tables(DATA, tmp_path / "new", mirrors=[url], on_file=told.append)
    for name, label in (("one.data", "<=50K"), ("one.test", ">50K")):
        header, row, end = (tmp_path / "new" / f"{name}.csv").read_text().split("\n")
        assert (header.split(",")[0], header.split(",")[-1], end) == ("age", "income", "")
        assert (row.split(",")[1], row.split(",")[-1]) == ("State-gov", label)
    assert told == ["one.data.csv", "one.test.csv"]


def test_a_copy_with_other_line_ends_is_the_same_file(tmp_path: Path) -> None:
    changed = served(data=FILES["one.data"].replace(b"\n", b"\r\n"))
    with http_sink(files=changed) as url:
        _download_tables(DATA, tmp_path, mirrors=[url], on_file=lambda _: None)
    assert (tmp_path / "one.data.csv").read_text().count("\n") == 2


def test_one_wrong_file_leaves_nothing(tmp_path: Path) -> None:
    with (
        http_sink(files=served(test=b"other")) as url,
        pytest.raises(InvalidSource, match="does not have the expected SHA-256"),
    ):
        _download_tables(DATA, tmp_path / "new", mirrors=[url], on_file=lambda _: None)
    assert not (tmp_path / "new").exists()


def test_the_real_files_are_told_by_their_checksums() -> None:
    assert {table.local for data in TABLES.values() for table in data.tables} == {
        "adult.csv",
        "adult_test.csv",
        "online_shoppers.csv",
    }
    assert TABLES.keys() == SAMPLES.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_without_a_network_a_sample_is_written_only_where_asked_for_and_said_to_be_made_up(
    name: str, tmp_path: Path
) -> None:
    unreachable = ("download", name, "--to", str(tmp_path), "--mirror", "http://127.0.0.1:1")
    refused = CliRunner().invoke(app, unreachable)
    assert refused.exit_code == 1
    assert "--or-sample" in refused.stderr
    assert list(tmp_path.iterdir()) == []
    written = CliRunner().invoke(app, [*unreachable, "--or-sample"])
    assert written.exit_code == 0
    assert "MADE UP" in written.stderr
    assert (tmp_path / f"{name}.csv").read_bytes() == write_sample(name, tmp_path / "again").read_bytes()


@pytest.mark.parametrize(("name", "label"), [("adult", "income"), ("online_shoppers", "Revenue")])
def test_a_sample_is_a_table_with_something_to_learn(name: str, label: str, tmp_path: Path) -> None:
    source = load_table(TableSettings(path=write_sample(name, tmp_path), label=label))
    assert source.records.features.shape == (ROWS, len(SAMPLES[name][0]) - 1)
    assert len(source.label_names) == 2
    assert 0.05 < source.records.labels.mean() < 0.5


REAL = Path(os.environ.get("MASKEDLARK_DATA", "../shared/data")) / "adult" / "adult.csv"


@pytest.mark.skipif(not REAL.is_file(), reason="UCI Adult is not on this machine")
def test_the_real_adult_has_the_columns_of_its_sample(tmp_path: Path) -> None:
    sample = write_sample("adult", tmp_path)
    assert REAL.read_text().split("\n", 1)[0] == sample.read_text().split("\n", 1)[0]
