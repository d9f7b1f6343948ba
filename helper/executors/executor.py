"""What a helper asks of the machines that do its work on many records: `Executor`, six methods.

    executor.open(opener, incoming)                              # report shares become rows, by chunks,
    executor.opens_at_once()                                     # of which it wants so many at once
    executor.masked_sum(gradient, records, evaluated, interrupt) # a round
    executor.scan(scoring, records, interrupt)                   # an evaluation's scores
    executor.add_up(adding, updates, interrupt)                  # a federated round
    executor.close()

An executor computes, and nothing else. The caller keeps the keys of its pair, the noise and the ledger, and
decides what leaves the helper: so work may be done twice, and is released once. Every executor gives the
same bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Protocol

from helper.datasets.records import DatasetRecords
from helper.gradient.engine import GradientEngine, Interrupt, MaskedSum
from helper.gradient.scoring import Scores
from maskedlark.frozen import frozen
from maskedlark.model.graph import Model
from maskedlark.model.heads import TrainedLoss
from maskedlark.model.weights import QuantisedTensor
from maskedlark.numbers.field import FieldVector
from maskedlark.privacy.clip import Clip
from maskedlark.releases.round import Evaluated
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener
from maskedlark.reports.updates import UpdateForm


@frozen
class ModelFile:
    """An ONNX file, and what one has to know to read it.

    `read` is called where a model is needed elsewhere; `trained` are the job's.
    """

    read: Callable[[], bytes] = field(repr=False)
    num_features: int
    trained: tuple[str, ...] | None = None


@frozen
class Gradient:
    """The function of a round: an engine at some weights, and what an engine elsewhere is made of.

    Attributes:
        engine: This process's.
        weights: Those of the round.
        file: The model's.
        loss: The loss.
        clip: The bound of the round, which the engine has.
    """

    engine: GradientEngine
    weights: tuple[QuantisedTensor, ...] = field(repr=False)
    file: ModelFile
    loss: TrainedLoss
    clip: Clip


@frozen
class Scoring:
    """What an evaluation asks of a record: in which of so many bins a model's score of it is."""

    model: Model = field(repr=False)
    loss: TrainedLoss
    weights: tuple[QuantisedTensor, ...] = field(repr=False)
    num_bins: int
    file: ModelFile


@frozen
class Adding:
    """What the shares of a federated round are: of which form, which helper's, and of which task."""

    form: UpdateForm
    role: int
    task_id: bytes


@frozen(eq=False)
class SummedUpdates:
    """The sum of a round's shares, in the field, and of how many it is."""

    vector: FieldVector = field(repr=False)
    records: int


class Executor(Protocol):
    """Works on many records. Safe to call from many threads."""

    def opens_at_once(self) -> int:
        """Return with how many chunks to call `open` at once to keep all openers busy."""

    def open(self, opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        """Run `opener.open(incoming)` without looking for repeats among the shares.

        Raises:
            HelperUnavailable: a worker was lost; the caller may ask again.
        """

    def masked_sum(
        self, gradient: Gradient, records: DatasetRecords, evaluated: Evaluated, interrupt: Interrupt
    ) -> MaskedSum:
        """Return the masked sum over a dataset's evaluated records; see `GradientEngine.masked_sum`.

        Raises:
            JobRefused(DATASET_LOST, MALFORMED)
        """

    def scan(self, scoring: Scoring, records: DatasetRecords, interrupt: Interrupt) -> Scores:
        """Score all records of a dataset, in canonical order; see `helper.gradient.scoring.score`.

        Raises:
            InvalidModel: the model has no exact form.
            JobRefused(DATASET_LOST)
        """

    def add_up(self, adding: Adding, updates: DatasetRecords, interrupt: Interrupt) -> SummedUpdates:
        """Add all shares of a federated round's dataset, whose features are payloads; see `UpdateSum`.

        Raises:
            JobRefused(DATASET_LOST)
            HelperUnavailable: they cannot be read at the moment.
        """

    def close(self) -> None:
        """End the workers."""
