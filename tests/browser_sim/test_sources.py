import gzip
import json
import subprocess
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser_sim.draws import Draws
from browser_sim.kinds import SourceKind
from browser_sim.source import InvalidSource, RowCounts, Source, SourceRecords
from browser_sim.sources import SourceSettings, load_source
from browser_sim.sources.mnist import default_folder, load_mnist
from browser_sim.sources.synthetic import LogisticTruth
from browser_sim.sources.table import TableSettings, fit_counting, load_table
from browser_sim.sources.wbcd import load_wbcd
from maskedlark.encoding.idx import TEST, TRAIN, parse_idx, unpack
from maskedlark.errors import InvalidTask
from maskedlark.reports.task_kinds import LabelKind
from tests.browser_sim.idx import write_mnist
from tests.builders import world

DRAWS = Draws(seed=1)


def table(folder: Path, text: str, **settings: object) -> Source:
    path = folder / "table.csv"
    path.write_text(text)
    return load_table(TableSettings(path=path, label="y", **settings))  # type: ignore[arg-type]


def test_wbcd_is_the_wisconsin_data_with_malignant_as_conversion() -> None:
    source = load_wbcd()
    assert source.records.features.shape == (569, 30)
    assert source.records.features.dtype == np.uint8
    assert (int(source.records.labels.sum()), source.label_names, source.default_label) == (
        212,
        ("benign", "malignant"),
        0,
    )
    malignant = source.records.labels == 1
    radius = source.records.features[:, source.feature_names.index("mean radius")]
    assert radius[malignant].mean() > radius[~malignant].mean() + 50


def test_the_wisconsin_table_that_comes_along_is_scikit_learns() -> None:
    from sklearn.datasets import load_breast_cancer  # of the dev extra

    text = resources.files("browser_sim.sources").joinpath("wbcd.csv").read_text(encoding="utf-8")
    header, *rows = text.splitlines()
    table = load_breast_cancer()
    assert header.split(",") == [*table.feature_names, "malignant"]
    ours = np.array([[float(cell) for cell in row.split(",")] for row in rows])
    assert np.array_equal(ours[:, :-1], table.data)
    assert np.array_equal(ours[:, -1] == 1, table.target == 0)


def test_csv_numbers_are_binned_and_words_coded(tmp_path: Path) -> None:
    source = table(tmp_path, "n,w,id,y\n0,red,1,no\n1,red,2,yes\n2,blue,3,no\n", ignore=("id",))
    assert source.feature_names == ("n", "w")
    assert source.records.features.tolist() == [[0, 0], [128, 0], [255, 1]]
    assert source.label_names == ("no", "yes")
    assert source.records.labels.tolist() == [0, 1, 0]
    assert source.default_label == 0
    assert source.notes == ("read as UTF-8, cells parted by commas", "columns of words: w (3 rows)")


def test_csv_gaps_keep_a_byte_of_their_own(tmp_path: Path) -> None:
    source = table(tmp_path, "n,w,y\n5,?,0\n,x,1\n7,NA,1\n")
    assert source.records.features.tolist() == [[1, 0], [0, 1], [255, 0]]


def test_csv_signs_for_gaps_are_gaps_and_no_words_to_compare_with(tmp_path: Path) -> None:
    content = "n,w,v,y\n5,-,-,0\n--,x,1,1\n-1,.,#N/A,1\n9,x,1,-\n"
    source = table(tmp_path, content, ignore=("v",), values={"there": "v!=", "gap": "v=="})
    assert source.records.features.tolist() == [[255, 0], [0, 1], [1, 0]]
    assert source.rows == RowCounts(read=4, left_out={"column 'y': no label": 1})
    cells = {name: list(one.cells) for name, one in source.cells.items()}
    assert cells == {"there": ["0", "1", "0"], "gap": ["1", "0", "1"]}
    with pytest.raises(InvalidSource, match=r"'v!=-' compares with '-', .*: v== counts rows with one"):
        table(tmp_path, content, values={"v": "v!=-"})
    with pytest.raises(InvalidSource, match="class '-' of column 'y' is an empty cell"):
        table(tmp_path, content, classes=("0", "-"))


def test_csv_rows_without_a_label_are_left_out_and_said(tmp_path: Path) -> None:
    source = table(tmp_path, "n,y\n1,0\n2,\n3,1\n")
    assert source.records.features[:, 0].tolist() == [0, 255]
    assert source.rows == RowCounts(read=3, left_out={"column 'y': no label": 1})


def test_csv_labels_that_read_as_gaps_are_named(tmp_path: Path) -> None:
    source = table(tmp_path, "n,y\n1,click\n2,none\n3,sale\n4,none\n5,-\n")
    read = "column 'y': no label ('none' reads as a gap: to make a class of it, write another word)"
    assert source.rows == RowCounts(read=5, left_out={read: 3})


def test_csv_rows_with_another_label_than_the_declared_are_counted(tmp_path: Path) -> None:
    source = table(tmp_path, "n,y\n1,no\n2,maybe\n3,yes\n4,\n5,maybe\n", classes=("no", "yes"))
    assert source.label_names == ("no", "yes")
    assert source.rows is not None
    assert source.rows.left_out == {"column 'y': no label": 1, "column 'y': not a declared class": 2}
    assert len(source.records) + sum(source.rows.left_out.values()) == source.rows.read
    with pytest.raises(InvalidSource, match="of 2 rows, column 'y' is empty in 1 and has another label"):
        table(tmp_path, "n,y\n1,\n2,maybe\n", classes=("no", "yes"))
    assert table(tmp_path, "n,y\n1,1.0\n2,0\n3,0.5\n", classes=("0", "1")).records.labels.tolist() == [1, 0]


def test_csv_classes_that_are_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    source = table(tmp_path, "n,y\n1,10\n2,9\n3,9.0\n4,2\n")
    assert source.label_names == ("2", "9", "10")
    assert source.records.labels.tolist() == [2, 1, 1, 0]
    assert source.default_label is None


def test_csv_values_are_kept_as_they_are(tmp_path: Path) -> None:
    source = table(tmp_path, "n,y\n1,0.5\n2,7\n", label_kind=LabelKind.VALUES)
    assert source.records.labels.tolist() == [0.5, 7.0]
    assert source.label_names == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "header"),
        ("n,n,y\n1,2,0\n", "distinct"),
        ("n,x\n1,2\n", "no column 'y'"),
        ("n,y\n1,0\n1\n", "line 3"),
        ("n,y\n", "no rows with a label"),
        ("y\n0\n1\n", "no feature columns"),
        ('n,y\n"1,0\n', "expected a CSV"),
    ],
)
def test_csv_that_is_not_a_labelled_table_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidSource, match=why):
        table(tmp_path, text)


def test_csv_that_is_not_text_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"n,y\n\0\x81,0\n")
    for name in ("bytes.csv", "absent.csv"):
        with pytest.raises(InvalidSource):
            load_table(TableSettings(path=tmp_path / name, label="y"))


def test_csv_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSource, match="finite numbers"):
        table(tmp_path, "n,y\n1,inf\n", label_kind=LabelKind.VALUES)


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_reads_plain_and_packed_idx_files(tmp_path: Path, packed: bool) -> None:
    write_mnist(tmp_path, train=30, test=10, packed=packed)
    source = load_mnist(tmp_path)
    assert source.records.features.shape == (30, 784)
    assert source.records.labels.tolist() == [row % 10 for row in range(30)]
    assert source.own_test is not None
    assert len(source.own_test) == 10
    assert source.default_label is None


def test_mnist_is_looked_for_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASKEDLARK_DATA", str(tmp_path))
    write_mnist(tmp_path / "mnist", train=10, test=10, packed=True)
    assert default_folder() == tmp_path / "mnist"
    assert len(load_source(SourceSettings(kind=SourceKind.MNIST), DRAWS).records) == 10


@pytest.mark.skipif(
    not (default_folder() / f"{TRAIN[0]}.gz").is_file(), reason="MNIST is not on this machine"
)
def test_the_real_mnist_has_its_known_digits() -> None:
    source = load_mnist(default_folder())
    assert source.records.features.shape == (60_000, 784)
    assert np.bincount(source.records.labels.astype(int)).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]


@pytest.mark.parametrize("name", [*TRAIN, *TEST])
def test_a_missing_mnist_file_is_named(tmp_path: Path, name: str) -> None:
    write_mnist(tmp_path, train=10, test=10, packed=True)
    (tmp_path / f"{name}.gz").unlink()
    with pytest.raises(InvalidSource, match=name):
        load_mnist(tmp_path)


def test_mnist_with_unequal_counts_or_wrong_digits_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, train=10, test=10, packed=False)
    (tmp_path / TRAIN[1]).write_bytes(bytes((0, 0, 8, 1, 0, 0, 0, 9)) + bytes(9))
    with pytest.raises(InvalidTask, match="9 labels"):
        load_mnist(tmp_path)
    (tmp_path / TRAIN[1]).write_bytes(bytes((0, 0, 8, 1, 0, 0, 0, 10)) + bytes([10] * 10))
    with pytest.raises(InvalidSource, match="not a digit"):
        load_mnist(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an idx file"),
        (bytes((0, 0, 8, 1)), "not an idx file"),
        (bytes((0, 0, 9, 1, 0, 0, 0, 0)), "not an idx file"),
        (bytes((0, 0, 8, 3, 0, 0, 0, 0)), "not an idx file"),
        (bytes((0, 0, 8, 1, 0, 0, 0, 2, 5)), "header says 10"),
        (bytes((0, 0, 8, 1, 0, 0, 0, 1, 5, 5)), "header says 9"),
    ],
)
def test_bytes_that_are_not_the_idx_file_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        parse_idx(content, 1, "labels")


def test_an_idx_header_whose_size_wraps_around_is_refused() -> None:
    with pytest.raises(InvalidTask, match="header says"):
        parse_idx(bytes((0, 0, 8, 3)) + b"\xff" * 12, 3, "images")


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (b"", "ends too early"),
        (b"not gzip", "not a sound gzip"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], "ends too early"),
        (gzip.compress(bytes(65 << 20), 1, mtime=0), "unpacks to more"),
    ],
    ids=["empty", "not gzip", "cut off", "exploding"],  # the same at every xdist worker
)
def test_a_damaged_or_exploding_gzip_file_is_refused(packed: bytes, reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        unpack(packed, "file")


def test_the_synthetic_truth_can_be_recovered_from_its_records() -> None:
    from sklearn.linear_model import LogisticRegression

    truth = LogisticTruth.draw(5, DRAWS)
    records = truth.synthesise(40_000, DRAWS).records
    fitted = LogisticRegression(C=np.inf).fit(records.features / 256.0, records.labels)
    assert np.abs(fitted.coef_[0] - truth.weights).max() < 0.25
    assert abs(fitted.intercept_[0] - truth.bias) < 0.25


def test_the_synthetic_truth_is_written_and_replayed_by_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "truth.json"
    settings = SourceSettings(kind=SourceKind.SYNTHETIC, synthetic_features=3, synthetic_rows=20, truth=path)
    once, again = load_source(settings, DRAWS), load_source(settings, DRAWS)
    assert (once.records.features == again.records.features).all()
    assert (once.records.labels == again.records.labels).all()
    assert json.loads(path.read_text())["weights"] == LogisticTruth.draw(3, DRAWS).weights.tolist()
    LogisticTruth.draw(3, Draws(seed=2)).save(path)
    assert json.loads(path.read_text())["weights"] != LogisticTruth.draw(3, DRAWS).weights.tolist()


def test_source_csv_needs_its_table() -> None:
    with pytest.raises(InvalidSource, match="--csv"):
        load_source(SourceSettings(kind=SourceKind.CSV), DRAWS)


def test_the_panel_and_the_reported_records_are_a_partition() -> None:
    source = load_wbcd()
    split = source.split_panel(0.25, DRAWS)
    assert split.panel is not None
    assert (len(split.panel), len(split.reported)) == (142, 427)
    parts = np.concatenate([split.panel.features, split.reported.features])
    assert sorted(map(bytes, parts)) == sorted(map(bytes, source.records.features))
    again, other = source.split_panel(0.25, DRAWS), source.split_panel(0.25, Draws(seed=2))
    assert again.panel is not None
    assert other.panel is not None
    assert (again.panel.features == split.panel.features).all()
    assert (other.panel.features != split.panel.features).any()


VISITS = "who,pages,kind,y\n" + "".join(
    f"{'' if row % 11 == 0 else f'u{row % 17}'},{row % 5},{'ab'[row % 2]},{row % 3 % 2}\n"
    for row in range(150)
)


def test_rows_of_a_table_are_of_people_whose_column_is_no_feature(tmp_path: Path) -> None:
    source = table(tmp_path, VISITS, person="who")
    assert source.feature_names == ("pages", "kind")
    assert source.rows == RowCounts(read=150, left_out={"column 'who': no person": 14})
    assert source.records.people is not None
    assert source.records.lines is not None
    names = [VISITS.splitlines()[line - 1].split(",")[0] for line in source.records.lines]
    assert [sorted(set(names))[one] for one in source.records.people] == names


def test_a_panel_of_people_has_whole_people(tmp_path: Path) -> None:
    source = table(tmp_path, VISITS, person="who")
    split = source.split_panel(0.25, DRAWS)
    assert split.panel is not None
    sides = [set((side.people if side.people is not None else np.zeros(0)).tolist()) for side in
             (split.reported, split.panel)]  # fmt: skip
    assert not sides[0] & sides[1]
    assert [len(side) for side in sides] == [13, 4]
    assert len(split.reported) + len(split.panel) == len(source.records)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"person": "y"}, "names the person and is the label, or measured"),
        ({"person": "kind", "keys": {"kind": "kind"}}, "names the person and is the label, or measured"),
        ({"person": "pages", "values": {"pages": "pages"}}, "names the person and is the label, or measured"),
        ({"person": "whom"}, "has no column 'whom'"),
    ],
)
def test_a_column_of_people_is_nothing_that_is_reported(
    settings: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSource, match=why):
        table(tmp_path, VISITS, **settings)


def test_a_column_of_people_that_the_encoder_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(VISITS)
    whole = TableSettings(path=tmp_path / "table.csv", label="y")
    encoder = fit_counting(replace(whole, publish=("who",))).encoder
    with pytest.raises(InvalidSource, match="column 'who' names the person and is a feature of the encoder"):
        load_table(replace(whole, encoder=encoder, person="who"))


def test_people_are_measured_without_a_label(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(VISITS)
    settings = TableSettings(path=tmp_path / "table.csv", values={"pages": "pages"}, person="who")
    source = load_table(settings)
    assert source.rows == RowCounts(read=150, left_out={"column 'who': no person": 14})
    assert source.records.people is not None
    assert len(source.records.people) == len(source.cells["pages"].cells) == 136


def test_the_panel_is_the_published_test_set_unless_a_fraction_is_said(tmp_path: Path) -> None:
    write_mnist(tmp_path, train=30, test=10, packed=True)
    source = load_mnist(tmp_path)
    assert source.split_panel(None, DRAWS).panel is source.own_test
    assert source.split_panel(None, DRAWS).reported is source.records
    by_fraction = source.split_panel(0.5, DRAWS)
    assert by_fraction.panel is not None
    assert len(by_fraction.panel) == len(by_fraction.reported) == 15


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_features": 5}, "takes 5"),
        ({"labels": {"kind": "values", "size": 10, "num_buckets": 3}}, "values"),
        ({"labels": {"kind": "classes", "size": 2}}, "outside"),
    ],
)
def test_a_source_that_the_task_cannot_take_is_refused(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    source = table(tmp_path, "a,b,c,d,y\n1,1,1,1,0\n1,1,1,1,1\n1,1,1,1,2\n")
    source.check_fits(world(labels={"kind": "classes", "size": 3}).task)
    with pytest.raises(InvalidTask, match=why):
        source.check_fits(world(**changes).task)


@pytest.mark.parametrize(("kind", "dtype"), [(LabelKind.CLASSES, np.int64), (LabelKind.VALUES, np.float64)])
def test_saved_records_are_read_back(tmp_path: Path, kind: LabelKind, dtype: type) -> None:
    records = SourceRecords(
        features=np.arange(6, dtype=np.uint8).reshape(3, 2), labels=np.array([0.0, 1.0, 2.0])
    )
    path = tmp_path / "new" / "panel"
    records.save(path, kind)
    assert list(path.parent.iterdir()) == [path]
    with np.load(path, allow_pickle=False) as saved:
        assert (saved["features"] == records.features).all()
        assert saved["labels"].dtype == dtype
        assert (saved["labels"] == records.labels).all()


def test_others_of_the_machine_see_no_saved_records_also_where_an_older_file_was_open_to_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "panel.npz"
    path.touch(mode=0o644)
    path.chmod(0o644)
    SourceRecords(features=np.zeros((1, 2), np.uint8), labels=np.zeros(1)).save(path, LabelKind.CLASSES)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_loads_encoders_only_for_a_table() -> None:
    code = "import browser_sim.run, browser_sim.sources.mnist, sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "numpy" in ran.stdout.split()
    assert not {"maskedlark.encoding.encoder", "browser_sim.sources.table"} & set(ran.stdout.split())
