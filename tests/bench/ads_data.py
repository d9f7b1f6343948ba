"""The data of `make bench-ads`: Adult and Frappe, checked by SHA-256, and Criteo's logs, which a user brings.

    python -m tests.bench.ads_data --to FOLDER      download Adult and Frappe from their homes

The files lie in the folder `ads` under MASKEDLARK_DATA. Each data set is split into people who report, a
panel of a fifth as many, who agreed that the ad server may see their records, and a test file. Encoders are
fitted on the panel, so nothing of those who report enters them.
"""

import argparse
import csv
import gzip
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from adserver.training.defaults import Network, choose_network
from browser_sim.download import fetch_file, session
from browser_sim.download_tables import MAX_TABLE_BYTES
from browser_sim.source import InvalidSource
from maskedlark.encoding.cells import said
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, PlannedTraining, fit
from maskedlark.model.table_network import table_network
from tests.bench.examples import LABEL, Examples, Table, read_adult, read_libfm
from tests.bench.mnist import FOLDER
from tests.bench.models_ids import logistic_on_ids

HOME: Final = FOLDER.parent / "ads"
_PANEL_SHARE: Final = 5
_UCI: Final = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_NFM: Final = "https://raw.githubusercontent.com/hexiangnan/neural_factorization_machine/master/data/frappe"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of a data set.

    Attributes:
        home: URL of the folder that has it.
        digests: SHA-256, in hex, of its text with Unix line ends: at its home, and as others re-packed it.
    """

    home: str
    digests: tuple[str, ...]


FILES: Final[Mapping[str, File]] = {
    "adult.data": File(
        home=_UCI,
        digests=(
            "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            "ea895aae047aa83ca757e3024a029be8b11806c656ad2c5b1efd8cec28af19ad",
        ),
    ),
    "adult.test": File(
        home=_UCI,
        digests=(
            "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            "10ab70aad17401e173c0096b6775f78362409517422ceb26c80f5f04dbc2e02e",
        ),
    ),
    "frappe.validation.libfm": File(
        home=_NFM, digests=("48ee9fd0f0c4c1e0ddab365470a2b7c650cc636c3ee4f9f1474206894c81fb8f",)
    ),
    "frappe.test.libfm": File(
        home=_NFM, digests=("2f087586cc72b002dccd04e3643d969af6cb661b3367a4829198bdd9051cee26",)
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One data set as a job of some epsilon sees it.

    Attributes:
        onnx: The network before training; one output, the logit of label 1.
        network: What its learning rate is chosen by.
    """

    encoder: Encoder
    onnx: bytes
    network: Network
    reported: Examples
    panel: Examples
    test: Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A data set: all rows that are split, the rows that test, and how a job of some epsilon is prepared."""

    seen: Table
    test: Table
    make: Callable[[Table, int, float, int], tuple[Encoder, bytes, Network]]

    def prepare(self, epsilon: float, seed: int) -> Prepared:
        """Split by the seed, fit the encoder on the panel, and make the network."""
        order = np.random.default_rng(seed).permutation(len(self.seen.labels))
        size = len(order) // _PANEL_SHARE
        panel, reported = self.seen.part(order[:size]), self.seen.part(order[size:])
        encoder, onnx, network = self.make(panel, len(reported.labels), epsilon, seed)
        return Prepared(
            encoder=encoder,
            onnx=onnx,
            network=network,
            reported=reported.encode(encoder),
            panel=panel.encode(encoder),
            test=self.test.encode(encoder),
        )


def adult() -> Source:
    """The 1994 census; income over 50,000 is the label."""
    seen, test = (_adult_table(name) for name in ("adult.data", "adult.test"))
    return Source(seen=seen, test=test, make=_tables)


def frappe() -> Source:
    """A log of an app's uses; whether a row is a use, and not made up, is the label."""
    seen, test = (_libfm_table(f"frappe.{name}.libfm") for name in ("validation", "test"))
    return Source(seen=seen, test=test, make=_ids)


def online_shoppers(seed: int = 0) -> Source:
    """Sessions of a shop; whether one ended with a purchase is the label. A fifth tests, by the seed."""
    with (FOLDER.parent / "online_shoppers_intention.csv").open() as file:
        rows = list(csv.DictReader(file))
    cells = {name: [said(row[name]) for row in rows] for name in rows[0]}
    labels = np.array([cell == "1" for cell in cells.pop("Revenue")], np.int64)
    table = Table(cells=cells, labels=labels)
    test, seen = np.split(np.random.default_rng(seed).permutation(len(labels)), [len(labels) // _PANEL_SHARE])
    return Source(seen=table.part(seen), test=table.part(test), make=_tables)


ATTRIBUTION_COLUMNS: Final = (
    "timestamp", "uid", "campaign", "conversion", "conversion_timestamp", "conversion_id", "attribution",
    "click", "click_pos", "click_nb", "cost", "cpo", "time_since_last_click",
    *(f"cat{place}" for place in range(1, 10)),
)  # fmt: skip
"""Of Criteo's attribution log, one line an impression, by time: huggingface.co/datasets/criteo."""
_DAY_S: Final = 86_400
_HOURS: Final = 24


def criteo_attribution(path: Path, *, rows: int, label: str = "click") -> Source:
    """Criteo's attribution log (criteo_attribution_dataset.tsv[.gz]), in order of time: the last fifth tests.

    Features are what is known as the banner is shown: campaign, nine contexts, hour, and whether and how long
    ago the person clicked before.

    Args:
        path: The file that the user brings.
        rows: At most so many impressions, the first ones.
        label: `click` or `conversion`.

    Raises:
        InvalidSource: the file has other columns or no rows.
    """
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        lines = csv.DictReader(file, delimiter="\t")
        if tuple(lines.fieldnames or ()) != ATTRIBUTION_COLUMNS:
            raise InvalidSource(
                f"{path.name} has the columns {lines.fieldnames}: expected {ATTRIBUTION_COLUMNS}"
            )
        kept = list(islice(lines, rows))
    cells: dict[str, list[str | None]] = {
        name: [line[name] for line in kept]
        for name in ("campaign", *(f"cat{place}" for place in range(1, 10)))
    }
    cells["hour"] = [str(int(line["timestamp"]) % _DAY_S * _HOURS // _DAY_S) for line in kept]
    cells["since_click"] = [_magnitude(float(line["time_since_last_click"])) for line in kept]
    return _by_time(Table(cells=cells, labels=np.array([int(line[label]) for line in kept], np.int64)), path)


PRIVATE_AD_GROUPS: Final = (
    "features_kv_bits_constrained_",
    "features_kv_not_constrained_",
    "features_browser_bits_constrained_",
    "features_ctx_not_constrained_",
)
"""Prefixes of CriteoPrivateAd's features; `features_not_available_` are what browsers no longer give."""


def criteo_private_ad(folder: Path, *, rows: int, label: str = "is_clicked") -> Source:
    """CriteoPrivateAd (folders day_int=1 to 30 of Parquet files), in order of days: the last fifth tests.

    Args:
        folder: The folder that the user brings.
        rows: At most so many impressions, the first ones.
        label: `is_clicked`, `is_click_landed` or `is_visit`.

    Raises:
        InvalidSource: there are no such files, or they have no such columns.
    """
    import pyarrow.parquet

    files = sorted(folder.glob("day_int=*/*.parquet"), key=lambda one: (int(one.parent.name[8:]), one.name))
    if not files:
        raise InvalidSource(f"{folder} has no day_int=N/*.parquet: give CriteoPrivateAd's folder of days")
    cells: dict[str, list[str | None]] = {}
    labels: list[int] = []
    for path in files:
        file = pyarrow.parquet.ParquetFile(path)
        names = [name for name in file.schema_arrow.names if name.startswith(PRIVATE_AD_GROUPS)]
        wanted = ["campaign_id", "publisher_id", *names]
        missing = {*wanted, label} - {*file.schema_arrow.names}
        if missing or not names or (cells and list(cells) != wanted):
            raise InvalidSource(
                f"{path} lacks the columns {sorted(missing)} or has others than earlier files"
            )
        for batch in file.iter_batches(columns=[*wanted, label]):
            left = batch.slice(0, rows - len(labels)).to_pydict()
            for name in wanted:
                cells.setdefault(name, []).extend(None if one is None else str(one) for one in left[name])
            labels += [int(one or 0) for one in left[label]]
            if len(labels) >= rows:
                return _by_time(Table(cells=cells, labels=np.array(labels, np.int64)), folder)
    return _by_time(Table(cells=cells, labels=np.array(labels, np.int64)), folder)


def _by_time(table: Table, path: Path) -> Source:
    count = len(table.labels)
    if not 0 < table.labels.sum() < count:
        raise InvalidSource(f"{path} has no rows of one of the two labels: take more rows")
    seen, test = np.split(np.arange(count), [count - count // _PANEL_SHARE])
    return Source(seen=table.part(seen), test=table.part(test), make=_ids)


def _magnitude(seconds: float) -> str | None:
    """Two words for each factor of ten; None where there is no click before."""
    return None if seconds < 0 else f"{np.floor(2 * np.log10(1 + seconds)):.0f}"


def _tables(panel: Table, reports: int, epsilon: float, seed: int) -> tuple[Encoder, bytes, Network]:
    """What quickstart chooses for a table of numbers and words."""
    encoder = fit(panel.cells, FitSettings())
    network = choose_network(rows=reports, epsilon=epsilon, columns=len(encoder.columns))
    onnx = table_network(
        encoder,
        hidden=network.hidden,
        outputs=1,
        seed=seed,
        are_numbers_in_tables=network.are_numbers_in_tables,
    )
    return encoder, onnx, network


def _ids(panel: Table, reports: int, epsilon: float, _: int) -> tuple[Encoder, bytes, Network]:
    """A logistic regression over ids, with vocabularies planned for the reports and epsilon."""
    training = PlannedTraining(reports=reports, epsilon=epsilon)
    encoder = fit(panel.cells, FitSettings(words=dict.fromkeys(panel.cells), training=training))
    return encoder, logistic_on_ids(encoder), Network(hidden=(), are_numbers_in_tables=False)


def _adult_table(name: str) -> Table:
    cells = read_adult(_text(name).splitlines())
    labels = np.array([label == ">50K" for label in cells.pop(LABEL)], np.int64)
    return Table(cells=cells, labels=labels)


def _libfm_table(name: str) -> Table:
    return read_libfm(_text(name).splitlines())


def _text(name: str) -> str:
    """Read a file of the folder.

    Raises:
        InvalidSource: it is not there, or it is another file.
    """
    path = HOME / f"{name}.gz"
    if not path.is_file():
        raise InvalidSource(
            f"{path} does not exist: python -m tests.bench.ads_data --to {HOME}, with MASKEDLARK_DATA "
            "its parent"
        )
    content = _check(name, gzip.decompress(path.read_bytes()))
    if content is None:
        raise InvalidSource(f"{path} does not have the expected SHA-256 {FILES[name].digests}")
    return content.decode("ascii")


def _check(name: str, content: bytes) -> bytes | None:
    text = content.replace(b"\r\n", b"\n")
    return text if sha256(text).hexdigest() in FILES[name].digests else None


def download(folder: Path, *, files: Mapping[str, File] = FILES) -> Iterator[str]:
    """Put the files into a folder, packed, and yield the name of each that came with the right SHA-256.

    Raises:
        InvalidSource: a file cannot be had, or it is another one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with session() as client:
        for name, file in files.items():
            text = fetch_file(
                client,
                (file.home,),
                name,
                most=MAX_TABLE_BYTES,
                digest=FILES[name].digests[0],
                right=partial(_check, name),
            )
            (folder / f"{name}.gz").write_bytes(gzip.compress(text, mtime=0))
            yield name


def digest(path: Path) -> str:
    """SHA-256 of a file, or of all files of a folder in order, in hex: what a result is quoted with."""
    hashed = sha256()
    for one in sorted(path.rglob("*.parquet")) if path.is_dir() else [path]:
        with one.open("rb") as file:
            while part := file.read(1 << 20):
                hashed.update(part)
    return hashed.hexdigest()


def main() -> None:
    """Download."""
    parser = argparse.ArgumentParser(description="Download Adult and Frappe for make bench-ads.")
    parser.add_argument("--to", type=Path, default=HOME)
    for name in download(parser.parse_args().to):
        print(f"{name}: checksum correct")


if __name__ == "__main__":
    main()
