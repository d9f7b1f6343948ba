"""What devices hold: a table by user, plays by speaker, and users with too few examples."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from browser_sim.devices.device_data import CHARACTERS, CONTEXT, table_by_user, text_by_speaker
from browser_sim.source import InvalidSource
from browser_sim.sources.table import TableSettings, fit_counting
from maskedlark.encoding.column_kinds import Binning
from maskedlark.errors import InvalidTask

ROWS: list[tuple[object, ...]] = [
    ("b", 1, "x", 0),
    ("a", 2, "y", 1),
    ("b", 3, "x", 1),
    ("c", 4, "x", 0),
    ("b", 5, "y", 1),
    ("a", 6, "y", 0),
]


def table(folder: Path, rows: list[tuple[object, ...]] = ROWS) -> TableSettings:
    path = folder / "visits.csv"
    lines = ["person,pages,colour,bought", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return TableSettings(path=path, label="bought", ignore=("person",), binning=Binning.QUANTILE)


def plays(folder: Path, spoken: object) -> Path:
    path = folder / "plays.json.gz"
    path.write_bytes(gzip.compress(json.dumps(spoken).encode()))
    return path


def test_a_tables_rows_belong_to_their_users_and_the_user_is_no_feature(tmp_path: Path) -> None:
    held = table_by_user(table(tmp_path), "person", least=1)
    assert len(held.population) == 3
    assert held.features.shape == (6, 2)
    first = held.examples(0)
    assert first.labels.tolist() == [1, 0]
    assert (first.features == held.features[[1, 5]]).all()
    assert [len(held.examples(one)) for one in range(3)] == [2, 3, 1]


def test_users_with_too_few_rows_are_left_out_and_none_left_is_refused(tmp_path: Path) -> None:
    held = table_by_user(table(tmp_path), "person", least=2)
    assert [len(held.examples(one)) for one in range(len(held.population))] == [2, 3]
    with pytest.raises(InvalidTask, match="no user has 4"):
        table_by_user(table(tmp_path), "person", least=4)


def test_a_table_without_the_users_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSource, match="no column 'visitor'"):
        table_by_user(table(tmp_path), "visitor", least=1)
    with pytest.raises(InvalidSource, match="cannot read"):
        table_by_user(TableSettings(path=tmp_path / "none.csv", label="bought"), "person", least=1)
    (tmp_path / "visits.csv").write_text("person,pages,colour,bought\n")
    with pytest.raises(InvalidSource, match="no rows with a label"):
        table_by_user(TableSettings(path=tmp_path / "visits.csv", label="bought"), "person", least=1)


def test_rows_without_a_label_or_a_person_are_left_out_and_the_others_stay_with_theirs(
    tmp_path: Path,
) -> None:
    gaps = [*ROWS[:2], ("b", 3, "x", ""), ROWS[3], ("", 5, "y", 1), ROWS[5]]
    held = table_by_user(table(tmp_path, gaps), "person", least=1)
    assert held.rows is not None
    assert held.rows.read == len(gaps)
    assert held.rows.left_out == {"column 'bought': no label": 1, "column 'person': no person": 1}
    assert [held.examples(one).labels.tolist() for one in range(3)] == [
        [row[3] for row in gaps if row[0] == name and row[3] != ""] for name in "abc"
    ]
    with pytest.raises(InvalidSource, match="no row with a label and a person"):
        table_by_user(table(tmp_path, [("", 1, "x", 1), ("", 2, "y", 0)]), "person", least=1)


def test_a_table_of_people_however_it_was_exported_is_read_by_the_encoder_of_others(tmp_path: Path) -> None:
    encoder = fit_counting(table(tmp_path)).encoder
    path = tmp_path / "other.csv"
    path.write_bytes("person;pages;colour;bought\nä;6;y;1\nä;1;x;0\n".encode("cp1252"))
    held = table_by_user(TableSettings(path=path, encoder=encoder), "person", least=1)
    cells = {"pages": ["6", "1"], "colour": ["y", "x"]}
    assert (held.features == encoder.features(cells)).all()


def test_a_speakers_characters_are_guessed_from_those_before(tmp_path: Path) -> None:
    held = text_by_speaker(plays(tmp_path, {"A": ["to be,", "Or not"], "B": ["yes"]}), least=1)
    first = held.examples(0)
    said = "to be,\nor not"
    assert len(first) == len(said)
    assert "".join(CHARACTERS[code] for code in first.labels) == said
    assert first.features.shape == (len(said), CONTEXT)
    assert "".join(CHARACTERS[code] for code in first.features[-1]) == said[-1 - CONTEXT : -1]
    assert "".join(CHARACTERS[code] for code in held.examples(1).labels) == "yes"


def test_no_speaker_reads_into_another(tmp_path: Path) -> None:
    held = text_by_speaker(plays(tmp_path, {"A": ["aaaa"], "B": ["bbbb"]}), least=1)
    blank = CHARACTERS.index(" ")
    for device, letter in enumerate("ab"):
        seen = set(np.unique(held.examples(device).features).tolist())
        assert seen == {blank, CHARACTERS.index(letter)}


def test_speakers_with_too_few_characters_are_left_out_and_none_left_is_refused(tmp_path: Path) -> None:
    path = plays(tmp_path, {"A": ["a long line"], "B": ["no"]})
    held = text_by_speaker(path, least=5)
    assert [len(held.examples(one)) for one in range(len(held.population))] == [11]
    with pytest.raises(InvalidTask):
        text_by_speaker(path, least=50)


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(b"{", mtime=0), gzip.compress(b"[1]", mtime=0)]
)
def test_a_file_that_holds_no_plays_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plays.json.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidSource):
        text_by_speaker(path, least=1)
    with pytest.raises(InvalidSource):
        text_by_speaker(tmp_path / "none.json.gz", least=1)


@pytest.mark.parametrize("spoken", [{"A": "a line"}, {"A": [1, 2]}, {"A": None}])
def test_plays_whose_speakers_have_no_lines_are_refused(tmp_path: Path, spoken: object) -> None:
    with pytest.raises(InvalidSource):
        text_by_speaker(plays(tmp_path, spoken), least=1)
