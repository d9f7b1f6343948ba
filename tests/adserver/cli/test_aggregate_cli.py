"""`adserver aggregate` and `from adserver import Client`, as far as no helper is needed.

Docs/tutorial/measurement.md runs the rest.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import typer
from typer.testing import CliRunner

from adserver import Client
from adserver.cli.aggregate import _groups_of, _read_off
from adserver.cli.main import app
from adserver.collecting.task_settings import measurement_from
from adserver.views import printing
from maskedlark.canonical import build
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.reports.measurement import Measurement
from tests.measured import SHOP

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer

RUNNER = CliRunner()


def options(folder: Path) -> list[str]:
    return [
        "aggregate",
        "--data",
        str(folder),
        "--helper-0",
        "127.0.0.1:1",
        "--helper-1",
        "127.0.0.1:2",
        "--insecure",
    ]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--where", "place"], "KEY=VALUE"),
        (["--plan", "--out", "a.csv"], "--plan asks for none"),
        # Taken as place, they would answer the opposite of what was asked
        (["--where", "place!=lima"], "the only kind of condition"),
        (["--where", "place>=lima"], "the only kind of condition"),
        (["--where", "place==lima"], "the only kind of condition"),
        (["--where", "place="], "the only kind of condition"),
        (["--where", "place=lima", "--where", "place=oslo"], "names place twice"),
        (["--quantile", "age"], "VALUE:SHARE"),
        (["--quantile", "age:half"], "VALUE:SHARE"),
        (["--quantile", "age:1.5"], "a share from 0 to 1"),
        (["--quantile", "age:nan"], "a share from 0 to 1"),
    ],
)
def test_options_that_cannot_be_read_say_what_they_take(tmp_path: Path, typed: list[str], said: str) -> None:
    done = RUNNER.invoke(app, [*options(tmp_path), *typed], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("aggregate --value count --out a.png", r"matplotlib: .*\[pictures\]"),
        ("aggregate --value count --out a.parquet", r"pyarrow: .*\[parquet\]"),
        ("aggregate --value count --out a.xlsx", r"ends in \.json, \.csv, \.parquet, \.png, not 'a\.xlsx'"),
        ("evaluate --job 3f --plot a.pdf", r"ends in \.png, not 'a\.pdf'"),
    ],
)
def test_a_file_that_nothing_here_can_write_is_refused_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, why: str
) -> None:
    monkeypatch.setattr(printing, "find_spec", lambda _: None)
    command, *typed = asked.split()
    ended = RUNNER.invoke(app, [command, *options(tmp_path)[1:], *typed])
    assert ended.exit_code != 0
    assert re.search(why, str(ended.exception))


@pytest.mark.parametrize("name", ["a file/a.csv", "a file/missing/a.csv", "a folder.csv"])
def test_a_file_whose_folder_takes_none_is_refused_before_anything_is_charged(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "a folder.csv").mkdir()
    done = RUNNER.invoke(app, [*options(tmp_path), "--value", "count", "--out", str(tmp_path / name)])
    assert re.search("cannot write .*: give a file in a folder where you may write", str(done.exception))


def test_nothing_is_asked_without_a_dataset(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, [*options(tmp_path), "--value", "count"])
    assert isinstance(done.exception, JobRefused)
    assert done.exception.reason is JobReason.UNKNOWN_DATASET


def test_an_unknown_query_cannot_be_asked_again(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, [*options(tmp_path), "--again", "abcd"])
    assert isinstance(done.exception, JobRefused)
    assert done.exception.reason is JobReason.UNKNOWN_QUERY


def test_a_client_of_an_empty_store_lists_nothing(tmp_path: Path) -> None:
    with Client(data=tmp_path, helpers=("127.0.0.1:1", "127.0.0.1:2"), insecure=True) as client:
        assert client.tasks() == []
        assert client.datasets() == []
        with pytest.raises(JobRefused) as refused:
            client.aggregate("count")
    assert refused.value.reason is JobReason.UNKNOWN_DATASET


def test_a_client_speaks_plaintext_only_if_asked_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="insecure"):
        Client(data=tmp_path, helpers=("127.0.0.1:1", "127.0.0.1:2"))


def test_a_measurement_file_declares_values_and_keys(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps(SHOP))
    declared = measurement_from(path)
    assert declared is not None
    assert [value.name for value in declared.values] == ["click", "purchase"]
    assert declared.keys[1].categories == ("seattle", "oslo", "lima")
    assert measurement_from(None) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"min_cell_count": 0}', '{"min_cell_count": 1, "colour": 2}']
)
def test_a_wrong_measurement_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(InvalidTask):
        measurement_from(path)


def test_names_of_columns_may_hold_what_separates_names() -> None:
    declared = build(
        Measurement,
        {
            "min_cell_count": 1,
            "values": [
                {"name": "paid", "low": 0, "high": 9, "title": "Paid: net"},
                {"name": "paid_filled", "low": 0, "high": 1, "title": "rows with Paid: net"},
            ],
            "keys": [
                {"name": "device_kind", "size": 2, "title": "Device, kind"},
                {"name": "a_b", "size": 2, "title": "a=b"},
                {"name": "place", "size": 2},
            ],
        },
    )

    class Server:
        """An ad server with one task."""

        def dataset(self, dataset: str) -> Any:
            return SimpleNamespace(task_id=b"\x11" * 32)

        def task(self, task_id: str) -> Any:
            task = SimpleNamespace(measurement=declared)
            return SimpleNamespace(stored=SimpleNamespace(bundle=SimpleNamespace(task=task)))

    server = cast("AdServer", Server())
    assert _groups_of(server, "", "Device, kind, place", ["a=b=1", "place = x=y"]) == {
        "group_by": ["Device, kind", "place"],
        "where": {"a=b": "1", "place": "x=y"},
    }
    for typed in ("a=b==1", "a!=1=2", "place", "a=b"):
        with pytest.raises(typer.BadParameter, match="expected KEY=VALUE"):
            _groups_of(server, "", "", [typed, "a=b=0"])
    means, quantiles, filled = _read_off(
        declared,
        ["Paid: net:rows with Paid: net", "Paid: net:count"],
        ["Paid: net:rows with Paid: net:0.5", "Paid: net:count:0.9"],
    )
    assert means == [("Paid: net", "rows with Paid: net"), ("Paid: net", "count")]
    assert quantiles == [("Paid: net", "rows with Paid: net", 0.5), ("Paid: net", "count", 0.9)]
    assert filled == {("Paid: net", "rows with Paid: net")}
