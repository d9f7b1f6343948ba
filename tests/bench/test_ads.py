"""The bench of private training for ads: its loaders on made-up files, its networks, and its page."""

import gzip
import json
import math
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from adserver.training.inference import predict
from browser_sim.source import InvalidSource
from maskedlark.model.onnx_file import parse
from tests.bench import ads_cost, ads_data, ads_report
from tests.bench.ads import Done, Work, cells, keys, works
from tests.bench.ads_data import (
    ATTRIBUTION_COLUMNS,
    File,
    Source,
    criteo_attribution,
    criteo_private_ad,
    digest,
)
from tests.bench.ads_methods import Score, Tables
from tests.bench.ads_one_shot import Release, in_bins, solve
from tests.bench.examples import Table

ROWS = 200


def attribution_file(folder: Path, columns: tuple[str, ...] = ATTRIBUTION_COLUMNS) -> Path:
    """A made-up log: a click follows from the first context, on every second banner."""
    chance = np.random.default_rng(1)
    lines = ["\t".join(columns)]
    for row in range(ROWS):
        cell = {name: str(int(chance.integers(0, 9))) for name in columns}
        cell |= {"timestamp": str(row * 3_600), "cat1": str(row % 2), "click": str(row % 2)}
        cell["time_since_last_click"] = "-1" if row % 3 else str(10**5)
        lines.append("\t".join(cell[name] for name in columns))
    path = folder / "criteo_attribution_dataset.tsv.gz"
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path


def private_ad_folder(folder: Path, **renamed: str) -> Path:
    """Made-up days, of which day 10 comes after day 2."""
    for day in (10, 2):
        part = folder / f"day_int={day}"
        part.mkdir()
        columns: dict[str, list[Any]] = {
            "id": [f"{day}-{row}" for row in range(ROWS // 2)],
            "user_id": ["u"] * (ROWS // 2),
            "display_order": [1] * (ROWS // 2),
            "campaign_id": [day] * (ROWS // 2),
            "publisher_id": [float(row % 5) for row in range(ROWS // 2)],
            "is_clicked": [row % 2 for row in range(ROWS // 2)],
            "is_click_landed": [None if row % 2 else 1.0 for row in range(ROWS // 2)],
            "is_visit": [row % 2 for row in range(ROWS // 2)],
            "nb_sales": [None] * (ROWS // 2),
            "features_kv_bits_constrained_0": [float(row % 2) for row in range(ROWS // 2)],
            "features_kv_not_constrained_1": [row % 7 for row in range(ROWS // 2)],
            "features_browser_bits_constrained_0": [None if row % 4 else 2.0 for row in range(ROWS // 2)],
            "features_ctx_not_constrained_0": [row % 3 for row in range(ROWS // 2)],
            "features_not_available_0": [row % 2 for row in range(ROWS // 2)],
        }
        table = {renamed.get(name, name): column for name, column in columns.items()}
        pyarrow.parquet.write_table(pyarrow.table(table), part / "part-0.parquet")
    return folder


def test_criteo_attribution_is_split_by_time_and_its_features_are_known_at_the_banner(tmp_path: Path) -> None:
    source = criteo_attribution(attribution_file(tmp_path), rows=ROWS)
    assert len(source.seen.labels) == ROWS * 4 // 5
    assert len(source.test.labels) == ROWS // 5
    assert set(source.seen.cells) == {
        "campaign", *(f"cat{place}" for place in range(1, 10)), "hour", "since_click",
    }  # fmt: skip
    assert source.seen.cells["hour"][:25] == [*map(str, range(24)), "0"]
    assert source.seen.cells["since_click"][:3] == ["10", None, None]
    assert source.seen.labels[:4].tolist() == [0, 1, 0, 1]
    assert len(criteo_attribution(attribution_file(tmp_path), rows=50).seen.labels) == 40


def test_criteo_private_ad_is_read_by_day_without_what_browsers_no_longer_give(tmp_path: Path) -> None:
    source = criteo_private_ad(private_ad_folder(tmp_path), rows=ROWS)
    assert source.seen.cells["campaign_id"] == ["2"] * (ROWS // 2) + ["10"] * (ROWS * 3 // 10)
    assert "features_not_available_0" not in source.seen.cells
    assert source.seen.cells["features_browser_bits_constrained_0"][:2] == ["2.0", None]
    landed = criteo_private_ad(tmp_path, rows=ROWS, label="is_click_landed")
    assert landed.seen.labels[:4].tolist() == [1, 0, 1, 0]
    assert len(criteo_private_ad(tmp_path, rows=60).seen.labels) == 48


@pytest.mark.parametrize(
    "load",
    [
        lambda folder: criteo_attribution(attribution_file(folder, ATTRIBUTION_COLUMNS[:-1]), rows=ROWS),
        lambda folder: criteo_attribution(attribution_file(folder), rows=1),
        lambda folder: criteo_private_ad(folder, rows=ROWS),
        lambda folder: criteo_private_ad(private_ad_folder(folder, is_clicked="clicks"), rows=ROWS),
    ],
    ids=["other columns", "one label", "no days", "no label"],
)
def test_another_file_is_refused(load: Callable[[Path], Source], tmp_path: Path) -> None:
    with pytest.raises(InvalidSource):
        load(tmp_path)


def test_files_count_by_their_checksum_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, files = b"1 4:1 7:1\r\n-1 5:1 7:1\r\n", {}
    files["frappe.test.libfm"] = File(
        home="https://home.example", digests=(sha256(text.replace(b"\r", b"")).hexdigest(),)
    )
    monkeypatch.setattr(ads_data, "FILES", files)
    monkeypatch.setattr(ads_data, "HOME", tmp_path)
    monkeypatch.setattr(ads_data, "fetch_file", lambda *_, right, **__: right(text))
    with pytest.raises(InvalidSource, match="does not exist"):
        ads_data._libfm_table("frappe.test.libfm")
    assert list(ads_data.download(tmp_path, files=files)) == ["frappe.test.libfm"]
    found = ads_data._libfm_table("frappe.test.libfm")
    assert found.cells == {"field 0": ["4", "5"], "field 1": ["7", "7"]}
    assert found.labels.tolist() == [1, 0]
    (tmp_path / "frappe.test.libfm.gz").write_bytes(gzip.compress(text + b"1 4:1 7:1\r\n"))
    with pytest.raises(InvalidSource, match="SHA-256"):
        ads_data._libfm_table("frappe.test.libfm")


def test_a_folder_has_one_digest_whatever_its_files_are_found_by(tmp_path: Path) -> None:
    private_ad_folder(tmp_path)
    assert digest(tmp_path) == digest(tmp_path)
    first = digest(tmp_path)
    (tmp_path / "day_int=2" / "part-1.parquet").write_bytes(b"more")
    assert digest(tmp_path) != first


def made_up(make: Any, rows: int = 300) -> Source:
    chance = np.random.default_rng(2)
    numbers, words = chance.normal(size=rows), chance.integers(0, 6, rows)
    cells: dict[str, list[str | None]] = {
        "number": [f"{value:.4f}" for value in numbers],
        "word": [f"w{value}" for value in words],
    }
    table = Table(cells=cells, labels=(numbers + words > 3).astype(np.int64))
    return Source(seen=table, test=table, make=make)


@pytest.mark.parametrize("make", [ads_data._tables, ads_data._ids])
@pytest.mark.parametrize("epsilon", [1.0, 1e6])
def test_every_side_begins_with_the_same_network(make: Any, epsilon: float) -> None:
    data = made_up(make).prepare(epsilon, 1)
    ours = predict(data.onnx, data.test.features)[:, 0]
    np.testing.assert_allclose(Tables(data).logits(data.test.features), ours, atol=1e-5)


@pytest.mark.parametrize("place", range(3))
def test_costs_are_of_one_network_in_both_forms(place: int) -> None:
    kind = ads_cost.kinds()[place]
    model = parse(kind.onnx, num_features=ads_cost.FEATURES)
    for network in kind.plain:
        assert sum(one.numel() for one in network.parameters()) == model.num_parameters


def test_one_shot_without_noise_finds_the_weights_of_a_logistic_regression() -> None:
    data = made_up(ads_data._tables, rows=4_000).prepare(1.0, 1)
    x = in_bins(data.encoder, data.reported.features)
    true = np.random.default_rng(3).normal(size=x.shape[1])
    chance = 1 / (1 + np.exp(-(x @ true)))
    release = Release(total=x.T @ (chance - 0.5), records=x.shape[0], deviation=0.0)
    np.testing.assert_allclose(x @ solve(release, x, 1e-6), x @ true, atol=0.05)


def test_keys_are_of_the_worst_cell() -> None:
    done = [
        Done(work=one, score=Score(auc=_auc(one), log_loss=0.3, mean_over_rate=1.0), panel_auc=0.8)
        for one in works(["adult", "frappe"], 2, is_quick=True)
    ]
    found = keys(done, ["adult", "frappe"])
    assert found["ours_minus_opacus_auc"] == pytest.approx(-0.02)
    assert found["rehearse_error_auc"] == pytest.approx(0.03)
    assert found["rate_rule_loss_auc"] == pytest.approx(0.01)
    assert not found["one_shot"]["is_within_bar"]
    assert {one.seeds for one in cells(done)} == {1, 2}


def test_an_aim_that_was_missed_is_called_so() -> None:
    over = {"logistic": 4.5, "tables": 6.1, "mlp": 5.0}
    table = ads_report.bars_table({"training_over_plain": over, "ours_minus_opacus_auc": -0.0072})
    verdicts = [line.split("|")[4].strip() for line in table.splitlines()[2:]]
    assert verdicts == ["missed", "", "", "met", "missed", "met"]


def _auc(work: Work) -> float:
    """Opacus is .02 ahead at epsilon 8 on Frappe, a rehearsal says .77 of .8, and one rate is better."""
    if work.method == "Opacus" and work.data == "frappe" and math.isclose(work.epsilon, 8.0):
        return 0.82
    if work.method == "rate":
        return 0.81 if work.factor > 3 else 0.7
    return {"rehearsed": 0.77, "one shot": 0.75}.get(work.method, 0.8)


def test_the_page_shows_the_figures_of_one_run() -> None:
    found = json.loads(ads_report.STORED.read_text())
    page = ads_report.PAGE.read_text()
    assert ads_report.fill_in(found, page) == page
