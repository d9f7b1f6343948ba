"""The private evaluation of a model.

What is asked, what bounds it, and a helper's answer, as a pure function of its opened dataset.

    scores -> the bin of each record's score -> masked count of each (row, bin) in the field -> blind -> noise
    -> aggregate share

One histogram holds all that accuracy, ROC and PR curves, calibration and loss need, so all of them cost one
release. Its two rows are, of a model with one output, the labels 0 and 1, over bins of the probability of 1;
of a model with an output for each class, whether its first choice is wrong (0) or right (1), over bins of the
confidence in that choice.

The candidate labels of a report are counted in the row of each, times the label's mask share: the real one's
adds to 1, a decoy's to 0.
"""

from dataclasses import replace
from hashlib import sha256
from typing import Annotated, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from maskedlark.canonical import Bytes16, Bytes32, canonical
from maskedlark.errors import InvalidModel, JobReason, JobRefused, ModelReason
from maskedlark.interrupt import Interrupt, never
from maskedlark.model.graph import Model
from maskedlark.model.heads import Head, Heads, TrainedLoss, check_trained
from maskedlark.model.losses import Loss, check_loss
from maskedlark.numbers.field import FieldVector, SignedVector, add, from_limbs, multiply
from maskedlark.numbers.fixed_point import check_no_overflow
from maskedlark.privacy.accounting import Charge
from maskedlark.privacy.noise import NoiseSource
from maskedlark.releases.possible_sums import check_within
from maskedlark.releases.release import (
    AggregateShare,
    AnsweredOnce,
    blind,
    charge_of,
    check_holds_labels,
    check_noise_fits_task,
    multiplier_for_each_helper,
    noise_of_both,
    units_of_each_helper,
)
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import LabelKind

ROWS: Final = 2
MAX_BINS: Final = 10_000
UNITS: Final = 1 << 20
"""One record is carried as this many units.

The noise of every budget that is a protection is then many units wide."""
SENSITIVITY: Final = UNITS
"""The most that one report changes the histogram, in L1 and in L2.

It has one real label at most, and so adds to one cell at most.
"""

_MAX_MULTIPLIER: Final = 4e6
# Records counted between two looks at whether anybody waits.
_BLOCK: Final = 1 << 20
_LOW: Final = np.uint64(2**32 - 1)
_32: Final = np.uint64(32)


@canonical
class EvaluationSpec(AnsweredOnce):
    """How good a model is on a dataset: one histogram, released once.

    Attributes:
        version: The protocol's version.
        query_id: 16 random bytes; a helper refuses the same id with another content.
        task_id: The task; its mechanism and budgets are not the evaluation's to set.
        dataset_id: The dataset.
        model_digest: `Model.digest` of the graph.
        weights_digest: `maskedlark.model.weights.digest` of the weights that the ONNX file holds, on their
            14-bit grid.
        num_bins: How many bins of even width the scores between 0 and 1 fall into.
        noise_multiplier: The noise scale divided by the sensitivity, as in a job; 0 only in a task without
            noise.
        head: Which head of the model is evaluated, and what each label code means for it; None of a model of
            one loss.
    """

    kind: ClassVar[str] = "evaluation"

    version: Literal[1] = 1
    query_id: Bytes16
    task_id: Bytes32
    dataset_id: Bytes32
    model_digest: Bytes32
    weights_digest: Bytes32
    num_bins: Annotated[int, Field(ge=2, le=1 << 30)]
    noise_multiplier: Annotated[float, Field(ge=0.0, le=_MAX_MULTIPLIER)]
    head: Annotated[Head | None, Field(exclude_if=lambda head: head is None)] = None

    @property
    def num_numbers(self) -> int:
        """The length of the answer."""
        return ROWS * self.num_bins

    def check(self, task: Task, *, records: int) -> None:
        """Refuse an evaluation that cannot be answered. Called by all parties before anything is charged.

        Raises:
            JobRefused(DOMAIN_TOO_LARGE, NOISE_OUT_OF_RANGE, OVERFLOW)
        """
        check_holds_labels(task)
        if self.num_bins > MAX_BINS:
            raise JobRefused(
                JobReason.DOMAIN_TOO_LARGE, f"num_bins is {self.num_bins}, the limit is {MAX_BINS}"
            )
        check_noise_fits_task(task, self.noise_multiplier, whose="evaluation")
        noise = noise_of_both(task, self.noise_units(task), self.num_numbers)
        check_no_overflow(records=records, sensitivity=SENSITIVITY, noise_bound=noise)

    def noise_units(self, task: Task) -> int:
        """Return each helper's noise scale on every cell, in `UNITS`.

        Raises:
            JobRefused(NOISE_OUT_OF_RANGE)
        """
        return units_of_each_helper(task, self.noise_multiplier, SENSITIVITY)

    def check_possible(self, task: Task, total: SignedVector, *, records: int) -> None:
        """Refuse an answer that honest reports cannot have: each adds one unit to one cell, or nothing.

        Called by the ad server before it reads an answer.

        Raises:
            JobRefused(SUM_OUT_OF_RANGE)
        """
        noise = noise_of_both(task, self.noise_units(task), len(total))
        check_within(total, least=0, most=records * UNITS, noise=noise, records=records)

    def charges(self, task: Task, rounds: int = 1) -> tuple[Charge, ...]:
        """Return the charge of an evaluation: one release of all records. Called by all parties."""
        return (charge_of(task, self.noise_multiplier),) * rounds

    def with_noise(self, task: Task, each_helpers: float) -> Self:
        """Return the same evaluation with the noise multiplier that leaves each helper this one."""
        return replace(self, noise_multiplier=multiplier_for_each_helper(task, each_helpers))


def loss_to_evaluate(task: Task, model: Model, head: Head | None = None) -> TrainedLoss:
    """Return the loss, or the one head, by which a model of a task of classes is evaluated.

    If the last operator is a Sigmoid, the one output is a probability.

    Raises:
        InvalidModel(WRONG_LOSS): the task's labels are numbers, or the number of outputs is not one in a task
            of two classes, or one for each class; the head does not fit, or is not of classes.
    """
    if task.labels.kind is not LabelKind.CLASSES:
        raise InvalidModel(
            ModelReason.WRONG_LOSS, "evaluation requires classes, but the labels of this task are numbers"
        )
    if head is not None:
        heads = Heads(heads=(head,))
        check_trained(model, heads, task.labels.size)
        head.classes()  # refuses one that is not of classes
        return heads
    if model.output_width != 1:
        loss = Loss.CROSS_ENTROPY
    elif model.nodes[-1].operator == "Sigmoid":
        loss = Loss.BINARY_CROSS_ENTROPY
    else:
        loss = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
    check_loss(model, loss, task.labels.size)
    return loss


def answer_evaluation(
    *,
    task: Task,
    spec: EvaluationSpec,
    pair: PairKey,
    shares: InputShares,
    bins: NDArray[np.int64],
    choices: NDArray[np.int64] | None,
    noise: NoiseSource,
    interrupt: Interrupt = never,
) -> AggregateShare:
    """Return one helper's share of the histogram, (row, bin) in units, flattened. Called by a helper.

    Args:
        task: The task.
        spec: The evaluation.
        pair: The helpers' common key.
        shares: The dataset.
        bins: (n,) the bin of each record's score.
        choices: (n,) the model's first choice among classes, or None for a model of one output.
        noise: Where this helper's noise comes from.
        interrupt: Called at least once every 2^20 records; what it raises ends the work.

    Guarantees: without the other helper's answer to the same evaluation the share is uniform. The sum of both
        is the histogram of the real labels in units, plus both helpers' noise; of a dataset of fewer than
        min_batch_size reports, it is the noise alone. If the helpers do not have the same bins, choices and
        labels of all records, the ad server learns that and nothing else.
    """
    labels, masks = shares.labels.astype(np.int64), shares.mask_shares
    if spec.head is not None:
        # A code that says nothing of the head is counted with a share of 0, and takes every step of others.
        labels, is_known = spec.head.classes()[labels], spec.head.known_codes()[labels]
        masks = masks * is_known.astype(np.uint64)
    rows = labels if choices is None else (labels == choices[:, None]).astype(np.int64)
    cells = rows * spec.num_bins + bins[:, None]
    counted = count_cells(cells, masks, spec.num_numbers, interrupt)
    if len(shares) < task.min_batch_size:
        # Zeros and no refusal: the answer has the form of any other, and its noise.
        counted = np.zeros_like(counted)
    return blind(
        pair=pair,
        release_transcript=spec.transcript,
        vector=multiply(counted, np.full_like(counted, UNITS)),
        # Cells follow from bins, choices and labels: the tag compares these, and no mask share enters it.
        values_digest=sha256(cells.astype("<i4").tobytes()).digest(),
        noise=noise(task.mechanism, spec.noise_units(task), spec.num_numbers),
    )


def count_cells(
    cells: NDArray[np.int64], mask_shares: FieldVector, count: int, interrupt: Interrupt = never
) -> FieldVector:
    """Return the field sums of mask shares by cell.

    Shapes: cells (n, L) below count, mask_shares (n, L) -> (count,).

    The 32-bit halves of one candidate's shares are added apart, which stays within 64 bits for 2^32 records.
    """
    total = np.zeros(count, np.uint64)
    for column, shares in zip(cells.T, mask_shares.T, strict=True):
        low, high = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        for start in range(0, len(column), _BLOCK):
            interrupt()
            here, block = column[start : start + _BLOCK], shares[start : start + _BLOCK]
            np.add.at(low, here, block & _LOW)
            np.add.at(high, here, block >> _32)
        total = add(total, from_limbs(low, high))
    return total
