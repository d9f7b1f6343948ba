"""The sources of records: one module each, chosen by name, and loaded when its records are."""

from pathlib import Path
from typing import TYPE_CHECKING

from browser_sim.draws import Draws
from browser_sim.kinds import SourceKind
from browser_sim.source import InvalidSource, Source
from maskedlark.frozen import frozen

if TYPE_CHECKING:
    from browser_sim.sources.table import TableSettings
    from maskedlark.encoding.encoder import Encoder


@frozen
class SourceSettings:
    """Which source, and what each needs.

    Attributes:
        kind: The source.
        table: For csv.
        mnist_folder: For mnist: the folder of idx files; None for the default one.
        image_encoder: For mnist: what makes features of images; None for pixels.
        synthetic_features: For synthetic: the width.
        synthetic_rows: For synthetic: how many records.
        truth: For synthetic: where to write the true model, or None.
    """

    kind: SourceKind
    table: "TableSettings | None" = None
    mnist_folder: Path | None = None
    image_encoder: "Encoder | None" = None
    synthetic_features: int = 8
    synthetic_rows: int = 10_000
    truth: Path | None = None


def load_source(settings: SourceSettings, draws: Draws) -> Source:
    """Read or draw the records.

    Raises:
        InvalidSource: the source lacks a setting, or its data cannot be used.
    """
    match settings.kind:
        case SourceKind.WBCD:
            from browser_sim.sources.wbcd import load_wbcd

            return load_wbcd()
        case SourceKind.MNIST:
            from browser_sim.sources.mnist import default_folder, load_mnist

            return load_mnist(settings.mnist_folder or default_folder(), settings.image_encoder)
        case SourceKind.CSV:
            if settings.table is None:
                raise InvalidSource("source csv needs --csv FILE and --label COLUMN")
            from browser_sim.sources.table import load_table

            return load_table(settings.table)
        case SourceKind.SYNTHETIC:
            from browser_sim.sources.synthetic import LogisticTruth

            truth = LogisticTruth.draw(settings.synthetic_features, draws)
            if settings.truth is not None:
                truth.save(settings.truth)
            return truth.synthesise(settings.synthetic_rows, draws)
