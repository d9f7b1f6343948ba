"""The word model of McMahan et al. 2018: embedding, LSTM, projection to the same embedding.

    model = WordModel(words=2000, embedding=32, hidden=64) model.layer_sizes          # 11 vectors; with
    10,000 words, 96 and 256 they hold the paper's 1,346,144 parameters

Needs torch. Embeddings have unit norm in use, as in the paper; the logits are multiplied by a scale, without
which inner products of unit vectors are too small for softmax to learn from.

A device's examples are sequences: features are the words, labels the words that follow. Word 0 is the unknown
one. It is trained on as any word is, and predicting it always counts as wrong.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from maskedlark.federated.local_training import IDLE, Differences, Examples, Parameters, TrainingSteps
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness, uniform

UNKNOWN: Final = 0
_GATES: Final = 4


@frozen
class WordModel:
    """A next-word model with tied embeddings.

    Attributes:
        words: V, the unknown word among them.
        embedding: E.
        hidden: H of the LSTM.
        scale: What multiplies the logits.
    """

    words: int
    embedding: int
    hidden: int
    scale: float = 3.0

    @property
    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        """Embedding; four gates' matrices and biases; projection's matrix and bias: 11 vectors."""
        gate = ((self.embedding + self.hidden, self.hidden), (self.hidden,))
        projection = ((self.hidden, self.embedding), (self.embedding,))
        return ((self.words, self.embedding), *gate * _GATES, *projection)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """How long each of the 11 vectors is."""
        return tuple(math.prod(shape) for shape in self._shapes)

    def initial(self, randomness: Randomness) -> Parameters:
        """Uniform in +- 1 / sqrt(fan in); biases zero but the forget gate's, which is 1."""
        parts = []
        for index, shape in enumerate(self._shapes):
            size = math.prod(shape)
            if len(shape) == 1:
                parts.append(np.full(size, 1.0 if index == 4 else 0.0))
                continue
            limit = 1.0 / math.sqrt(shape[1] if index == 0 else shape[0])
            parts.append((2.0 * uniform(size, randomness) - 1.0) * limit)
        return np.concatenate(parts).astype(np.float32)

    def train(self, parameters: Parameters, stack: Sequence[Examples], steps: TrainingSteps) -> Differences:
        """See `LocalModel.train`."""
        devices, count, _ = steps.schedule.shape
        start = torch.from_numpy(parameters.copy())
        trained = start.repeat(devices, 1)
        for step in range(count):
            # Devices that are done stand aside: most of a stack's last steps are of few devices.
            busy = np.flatnonzero(steps.schedule[:, step, 0] != IDLE)
            words, targets = _batch([stack[device] for device in busy.tolist()], steps.schedule[busy, step])
            moved = trained[busy]
            gradient = self._gradient(moved, words, targets)
            if steps.proximal:
                gradient += steps.proximal * (moved - start)
            moved = moved - steps.learning_rate * gradient
            if steps.project is not None:
                moved = start + torch.from_numpy(steps.project((moved - start).numpy()))
            trained[busy] = moved
        differences: Differences = (trained - start).numpy()
        return differences

    def accuracy(self, parameters: Parameters, examples: Examples, *, batch: int = 512) -> float:
        """Top-1 recall over all positions; an unknown true word counts as missed, whatever is predicted."""
        weights = torch.from_numpy(parameters.copy())[None]
        right = 0
        with torch.no_grad():
            for first in range(0, len(examples), batch):
                words = torch.from_numpy(examples.features[first : first + batch].astype(np.int64))
                targets = torch.from_numpy(examples.labels[first : first + batch].astype(np.int64))
                predicted = self._logits(weights, words[None])[0].argmax(dim=-1)
                right += int(((predicted == targets) & (targets != UNKNOWN)).sum())
        return right / examples.labels.size

    def _gradient(self, trained: torch.Tensor, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The gradient of each device's mean loss over the words of its batch: (devices, parameters)."""
        weights = trained.clone().requires_grad_()
        logits = self._logits(weights, words)
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), ignore_index=IDLE, reduction="none"
        ).view(targets.shape)
        counts = (targets != IDLE).sum(dim=(1, 2)).clamp(min=1)
        (gradient,) = torch.autograd.grad((losses.sum(dim=(1, 2)) / counts).sum(), weights)
        return gradient

    def _logits(self, weights: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Scores (devices, batch, tokens, words) for words (devices, batch, tokens), each by its weights."""
        devices, batch, tokens = words.shape
        table, *gates, project, offset = (
            part.view(devices, *shape)
            for part, shape in zip(
                torch.split(weights, list(self.layer_sizes), dim=1), self._shapes, strict=True
            )
        )
        table = torch.nn.functional.normalize(table, dim=2)
        matrix, bias = torch.cat(gates[0::2], dim=2), torch.cat(gates[1::2], dim=1)[:, None]
        places = words.reshape(devices, -1, 1).expand(-1, -1, self.embedding)
        inputs = table.gather(1, places).view(devices, batch, tokens, self.embedding)
        from_words = inputs.flatten(1, 2) @ matrix[:, : self.embedding] + bias
        from_words = from_words.view(devices, batch, tokens, -1)
        state = cell = torch.zeros(devices, batch, self.hidden)
        states = []
        for token in range(tokens):
            gated = from_words[:, :, token] + state @ matrix[:, self.embedding :]
            inward, forget, candidate, outward = gated.chunk(_GATES, dim=2)
            cell = forget.sigmoid() * cell + inward.sigmoid() * candidate.tanh()
            state = outward.sigmoid() * cell.tanh()
            states.append(state)
        outputs = torch.stack(states, dim=2).flatten(1, 2) @ project + offset[:, None]
        logits: torch.Tensor = self.scale * outputs @ table.transpose(1, 2)
        return logits.view(devices, batch, tokens, self.words)


def _batch(stack: Sequence[Examples], places: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Each device's sequences at its places; targets are `IDLE` where there is none."""
    tokens = stack[0].labels.shape[1]
    words = np.zeros((*places.shape, tokens), np.int64)
    targets = np.full((*places.shape, tokens), IDLE, np.int64)
    for device, (examples, row) in enumerate(zip(stack, places, strict=True)):
        real = np.flatnonzero(row != IDLE)
        words[device, real] = examples.features[row[real]]
        targets[device, real] = examples.labels[row[real]]
    return torch.from_numpy(words), torch.from_numpy(targets)
