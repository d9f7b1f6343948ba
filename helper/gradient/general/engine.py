"""The general gradient path.

Any graph that the parser accepts, differentiated record by record by torch in float64.

It is slower than the exact path, and the two helpers agree only up to coarse rounding (`rounding`). A value
halfway between two grid points, or a choice that depends on the last bit (the largest entry of a pooling
window, the sign that a ReLU sees), can differ between machines. The values' digest then differs, and the ad
server discards the round.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from helper.gradient.engine import Batch, Interrupt, MaskedSum, Reclippable, never
from helper.gradient.general.masked_products import MAX_ROWS, MaskedProducts
from helper.gradient.general.rounding import MAX_PARAMETERS, MAX_SENSITIVITY, clip_to_integers, with_count
from maskedlark.autodiff.interpreter import Interpreter
from maskedlark.autodiff.one_thread import one_thread
from maskedlark.autodiff.output_gradients import output_gradients
from maskedlark.errors import InvalidModel, JobReason, JobRefused, ModelReason
from maskedlark.model.graph import Model
from maskedlark.model.heads import TrainedLoss, bind, check_trained
from maskedlark.model.weights import QuantisedTensor
from maskedlark.numbers.field import SignedVector
from maskedlark.privacy.clip import Clip

# Float64 numbers of gradients and activations that one chunk of records holds at a time.
_CHUNK_NUMBERS: Final = 1 << 22
_MAX_CHUNK_RECORDS: Final = 512
# bytes, measured by `make bench-memory`
# The sums of limbs, their products and the total.
_A_PARAMETER: Final = 100
# Of each record, label and parameter: the gradient, its integers and their copies for digest and product.
_A_GRADIENT: Final = 56
# Of each record, label and value: what goes back.
_A_DELTA: Final = 16
# Of each record and value: the value, and what its derivative needs.
_AN_ACTIVATION: Final = 16


class GeneralEngine(Reclippable):
    """The gradient of one job's model and loss, for any model (a `GradientEngine`)."""

    def __init__(
        self,
        model: Model,
        loss: TrainedLoss,
        clip: Clip,
        num_classes: int | None,
        *,
        why: str = "the model has no exact form",
    ) -> None:
        """Prepare one job.

        Args:
            model: The checked graph.
            loss: Its loss, or its heads.
            clip: The bound on each record's gradient.
            num_classes: The classes of the task, or None where labels are numbers.
            why: Why the job is not on the exact path.

        Raises:
            InvalidModel: WRONG_LOSS (the loss does not fit the model and the classes), or TOO_LARGE (more
                parameters than the clip is proven for).
            JobRefused(OVERFLOW): the clip bound exceeds 2^40 units.
        """
        check_trained(model, loss, num_classes)
        if model.num_parameters > MAX_PARAMETERS:
            raise InvalidModel(
                ModelReason.TOO_LARGE,
                f"{why}; and the general path takes models of up to {MAX_PARAMETERS} parameters, not "
                f"{model.num_parameters}",
            )
        if clip.sensitivity > MAX_SENSITIVITY:
            raise JobRefused(
                JobReason.OVERFLOW,
                f"the clip bound is above 2^40 units of 2^-{clip.frac_bits}: use fewer frac_bits",
            )
        self._why = why
        self._model = model
        self._loss = bind(loss, model)
        self._clip = clip
        self._interpreter = Interpreter(model)
        self._activations = (
            self._interpreter.count_elements()
            - model.num_parameters
            - sum(model.constants[name].size for name in model.frozen)  # one copy for all records
        )

    @property
    def path(self) -> str:
        """`general`."""
        return "general"

    @property
    def reason(self) -> str:
        """One sentence on why this path was taken."""
        return f"{self._why}: gradients are float64, coarsely rounded"

    def masked_sum(
        self, weights: tuple[QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
    ) -> MaskedSum:
        """Return the masked sum over the batch at these weights. Called by a helper once a round.

        Guarantees: every value summed is an integer vector of clip norm at most `sensitivity`; the products
            with the mask shares and their sum are exact; records are evaluated in chunks whose size depends
            on the model and the number of labels alone.

        Edge cases: an empty batch gives zeros; a gradient that is not finite counts as zero.
        """
        num_labels = batch.labels.shape[1]
        hasher = sha256(b"maskedlark/v1 general values\0")
        hasher.update(np.array([len(batch), num_labels, self._model.num_parameters], "<u8").tobytes())
        # By the bound alone, so that both helpers hash the same bytes.
        stored = np.dtype("<i4" if self._clip.sensitivity < 1 << 31 else "<i8")
        products = MaskedProducts(self._model.num_parameters + self._clip.is_counted, self._clip.sensitivity)
        parameters = [torch.from_numpy(weight.to_float()) for weight in weights]
        size = self._chunk_records(num_labels)
        # With more threads torch adds in another order, and the helpers would not agree.
        with one_thread():
            for start in range(0, len(batch), size):
                interrupt()
                chunk = slice(start, start + size)
                gradients = self._gradients(parameters, batch.features[chunk], batch.labels[chunk])
                interrupt()
                values = self._clip_rows(gradients)
                interrupt()
                if self._clip.is_counted:
                    values = with_count(values, gradients, self._clip)
                hasher.update(values.astype(stored).data)
                interrupt()
                products.add(values, batch.mask_shares[chunk].reshape(-1), interrupt)
        return MaskedSum(
            vector=products.total(interrupt),
            values_digest=hasher.digest(),
            sensitivity=self._clip.released_sensitivity,
        )

    def _chunk_records(self, num_labels: int) -> int:
        """Return how many records to evaluate at once.

        The same at both helpers, for sums in float64 depend on it.
        """
        numbers = num_labels * (self._model.num_parameters + self._activations)
        return max(1, min(_CHUNK_NUMBERS // numbers, _MAX_CHUNK_RECORDS, MAX_ROWS // num_labels))

    def round_bytes(self, records: int, labels: int) -> int:
        """See `GradientEngine`."""
        chunk = min(records, self._chunk_records(labels))
        parameters = self._model.num_parameters
        return (
            _A_PARAMETER * parameters
            + chunk * labels * (_A_GRADIENT * parameters + _A_DELTA * self._activations)
            + chunk * _AN_ACTIVATION * self._activations
        )

    @property
    def held_bytes(self) -> int:
        """See `GradientEngine`."""
        return 8 * sum(constant.size for constant in self._model.constants.values())

    def _clip_rows(self, gradients: NDArray[np.float64]) -> SignedVector:
        """Clip gradients to integers within the bound: whole rows, or each tensor's part alone."""
        if not self._clip.is_per_layer:
            return clip_to_integers(gradients, self._clip)
        sizes = [parameter.size for parameter in self._model.parameters]
        clip = self._clip.of_each(len(sizes))
        parts = np.split(gradients, np.cumsum(sizes)[:-1], axis=1)
        return np.concatenate([clip_to_integers(np.ascontiguousarray(part), clip) for part in parts], axis=1)

    def _gradients(
        self, parameters: Sequence[Tensor], features: NDArray[np.uint8], labels: NDArray[np.uint32]
    ) -> NDArray[np.float64]:
        """Return every (record, label)'s flat gradient.

        Shapes: features (records, d), labels (records, labels); the result (records * labels, parameters),
            labels innermost.
        """
        reals = torch.from_numpy(features.astype(np.float64) / 256.0)
        gradients = torch.func.vmap(self._record_gradients, in_dims=(None, 0, 0))(
            tuple(parameters), reals, torch.from_numpy(labels.astype(np.int64))
        )
        flat: NDArray[np.float64] = gradients.reshape(labels.size, -1).numpy()
        return flat

    def _record_gradients(self, parameters: tuple[Tensor, ...], features: Tensor, labels: Tensor) -> Tensor:
        """Return one record's gradient for each label, from one forward pass: (labels, parameters)."""
        outputs, pull_back, *_ = torch.func.vjp(
            lambda *given: self._interpreter.evaluate(given, features), *parameters
        )
        gradients = torch.func.vmap(pull_back)(output_gradients(self._loss, outputs, labels))
        return torch.cat([gradient.reshape(len(labels), -1) for gradient in gradients], 1)
