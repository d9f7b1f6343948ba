import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from adserver.simulating.example_files import read_examples
from maskedlark.encoding.idx import parse_idx
from maskedlark.errors import InvalidTask


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_mnist(folder: Path, *, packed: bool) -> None:
    numbers = np.random.default_rng(1)
    for part, count in (("train", 40), ("t10k", 10)):
        images = numbers.integers(0, 256, (count, 2, 3)).astype(np.uint8)
        labels = (np.arange(count) % 4).astype(np.uint8)
        for name, content in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            encoded = idx(content)
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(encoded) if packed else encoded)


@pytest.mark.parametrize("packed", [True, False])
def test_a_folder_of_idx_files_is_read(tmp_path: Path, packed: bool) -> None:
    write_mnist(tmp_path, packed=packed)
    held = read_examples(tmp_path)
    assert (held.width, held.classes, len(held.training), len(held.evaluation)) == (6, 4, 40, 10)
    assert held.users == ()


def test_a_csv_is_scaled_to_bytes_and_keyed_by_user(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    rows = [f"{place},{place % 3},u{place % 2},{'yes' if place > 9 else 'no'}" for place in range(20)]
    path.write_text("\n".join(["pages,region,who,bought", *rows]))
    held = read_examples(path, label="bought", user="who")
    assert (held.width, held.classes, len(held.evaluation)) == (2, 2, 2)
    assert held.users[:3] == ("u1", "u0", "u1")
    assert held.training.features.max() == 255
    assert held.evaluation.features[0].tolist() == [0, 0]
    assert held.evaluation.labels.tolist() == [0, 1]


def test_a_table_is_read_as_people_export_it(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    rows = [f"{place},5;u{place % 2};{place % 2};{place} €" for place in range(20)]
    path.write_bytes("\n".join(["Größe;Mitglied;gekauft;Preis", *rows]).encode("utf-8-sig"))
    held = read_examples(path, label="gekauft", user="Mitglied")
    assert (held.width, held.classes, held.users[:2]) == (2, 2, ("u1", "u0"))
    assert (held.training.features[:, 0] == held.training.features[:, 1]).all()
    path.write_text("a;gekauft\n" + "1;0\n" * 12)
    assert read_examples(path, label="gekauft").users == ()
    with pytest.raises(InvalidTask, match="name the column of its labels with --label"):
        read_examples(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("a,who,bought\n", "fewer than 10 rows"),
        ("who,bought\n" + "u,1\n" * 12, "no column of numbers"),
        ("a,b,c\n" + "1,2,3\n" * 12, "no column 'bought'; it has a, b, c"),
        (
            "a,who,bought\n" + "1,u,1\n" * 12 + "x,u,1\n",
            "bad.csv, line 14, column 'a': found a word, expected",
        ),
        ("a,who,bought\n1,u,1\n,u,1\n" + "1,u,1\n" * 12, "line 3, column 'a': found no value, expected"),
        ("a,who,bought\n" + "1,u\n" * 12, "line 2: found 2 cells, expected 3"),
        ("a,who,bought\n" + "inf,u,1\n" * 12, "line 2, column 'a': found a word, expected a number"),
        ("a,who,bought\n1,,1\n" + "1,u,1\n" * 12, "line 2, column 'who': found no value, expected one in"),
        ("", "header"),
    ],
)
def test_a_file_that_is_no_such_csv_is_refused(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(InvalidTask, match=told):
        read_examples(path, label="bought", user="who")


def test_a_folder_without_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match="train-images"):
        read_examples(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08\x01", idx(np.zeros(3, np.uint8))[:-1], bytes((0, 0, 9, 1)) + bytes(8)]
)
def test_bytes_that_are_no_idx_file_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidTask):
        parse_idx(content, 1, "labels")
