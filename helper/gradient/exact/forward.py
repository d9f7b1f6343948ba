"""A model's outputs without a gradient, by the same layers as in a round.

Equal bits on every machine, whatever the blocks.
"""

from typing import Final

import numpy as np

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.rows import Bytes, Real, Value, to_real
from helper.gradient.exact.layers.layer import RoundSetup
from helper.gradient.exact.lowering.lowering import lower
from helper.gradient.exact.memory import part_bytes, plan_bytes, records_within
from helper.gradient.exact.products.fastest import FastestBackend
from helper.gradient.exact.products.product import Backend
from maskedlark.interrupt import Interrupt, never
from maskedlark.model.graph import Model
from maskedlark.model.heads import TrainedLoss
from maskedlark.model.weights import QuantisedTensor
from maskedlark.privacy.clip import Norm

_BLOCK_BYTES: Final = 1 << 23
_MAX_BLOCK: Final = 512
_WORTHWHILE_BLOCK: Final = 8
_MOST_BLOCK_BYTES: Final = 1 << 26
# What tables of windows take while they are made, of what they take afterwards.
_TABLES_MADE: Final = 6


class ForwardPass:
    """What a model gives before its loss, in the exact path's numbers.

    Args:
        model: The checked graph.
        loss: What the output is read by: a last Sigmoid or LogSoftmax that it takes in is left out, and the
            output is a logit.
        backend: How products are computed; by default as is fastest here.

    Raises:
        NotExact: the model has no exact form; the message says why.
    """

    def __init__(self, model: Model, loss: TrainedLoss, *, backend: Backend | None = None) -> None:
        self._plan = lower(model, loss)
        self._width = model.output_width
        self._backend: Backend = FastestBackend() if backend is None else backend
        needed = part_bytes(self._plan, self._backend, seeds=0, labels=1)
        block = np.clip(_BLOCK_BYTES // (16 * sum(self._plan.sizes)), _WORTHWHILE_BLOCK, _MAX_BLOCK)
        self._block_records = records_within(_MOST_BLOCK_BYTES, needed.block, most=int(block))
        self.num_bytes = max(
            needed.fixed + self._block_records * needed.block, _TABLES_MADE * plan_bytes(self._plan)
        )
        """What scoring takes at once, whatever the number of records; their outputs come on top."""

    def outputs(
        self, weights: tuple[QuantisedTensor, ...], features: Bytes, interrupt: Interrupt = never
    ) -> Real:
        """Return each record's outputs at these weights.

        Shapes: features (n, d), each byte b read as b / 256 -> float64 (n, outputs).

        `interrupt` is called before each block of at most 512 records.
        """
        records = np.ascontiguousarray(features, np.uint8)
        size = self._block_records
        setup = RoundSetup(
            weights=(*weights, *self._plan.frozen),
            backend=self._backend,
            norm=Norm.L2,  # of rows, and not used: there is nothing to clip
            labels=1,
            chunk_records=size,
            vector=np.empty(0, np.uint64),
            buffers=Buffers(),
        )
        running = self._plan.start(setup)
        result = np.empty((len(records), self._width))
        for start in range(0, len(records), size):
            interrupt()
            block = records[start : start + size]
            values: dict[int, Value] = {0: block}
            with np.errstate(all="ignore"):  # infinities and NaNs have a defined result, see `rows`
                for layer, step in zip(running, self._plan.steps, strict=True):
                    values[step.output] = layer.forward(*(values[number] for number in step.inputs))
            result[start : start + size] = to_real(values[self._plan.output]).reshape(len(block), self._width)
        return result
