"""How each side of `make bench-ads` trains: this product, Opacus, label DP, and plainly.

All of them train the same network, from the same weights, on the records that one job sees.
"""

import math
import warnings
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn

from adserver.records.optimizer_kinds import ScheduleKind
from adserver.records.training_plan import Schedule
from adserver.training.defaults import ROUNDS, choose_learning_rate
from adserver.training.inference import predict
from maskedlark.encoding.encoder import IdColumn, NumberColumn
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.accounting import Epsilons
from tests.bench.ads_data import Prepared
from tests.bench.dp_sgd import opacus_noise
from tests.bench.examples import Examples
from tests.bench.private_training import MOMENTUM
from tests.bench.quickstart_job import train_as_quickstart

NO_LIMIT: Final = 1e6
"""An epsilon that binds nothing."""
OPACUS_CLIP: Final = 1.0
"""Opacus has one bound in all rounds. Its step is the rate over the bound, as ours is."""
_PLAIN_RATES: Final = (0.003, 0.03)
_PLAIN_EPOCHS: Final = 12
_PLAIN_BATCH: Final = 512
_HELD: Final = 4
"""A panel that trains alone keeps one of so many of its records to stop by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Our model on the test records and on the panel."""

    test: "Score"
    panel: "Score"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A trained model on the test records.

    Attributes:
        auc: Area under the ROC curve.
        log_loss: Mean.
        mean_over_rate: The mean prediction over the share of label 1.
        cost: What the product's accountant charges; None for others.
    """

    auc: float
    log_loss: float
    mean_over_rate: float
    cost: Epsilons | None = None


def score(logits: NDArray[np.floating], test: Examples, cost: Epsilons | None = None) -> Score:
    """Score logits of label 1."""
    chance = 1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -30, 30)))
    return Score(
        auc=float(roc_auc_score(test.labels, logits)),
        log_loss=float(log_loss(test.labels, chance)),
        mean_over_rate=float(chance.mean() / test.labels.mean()),
        cost=cost,
    )


def train_ours(
    data: Prepared,
    *,
    epsilon: float,
    seed: int,
    is_colluding: bool = False,
    learning_rate: float | None = None,
) -> Trained:
    """Train as quickstart does, by the exact engine with both helpers' noise.

    Args:
        data: What to train, and on whom.
        epsilon: The job's budget; infinite: the clip alone, without noise.
        seed: Names the job.
        is_colluding: Whether the budget is against the ad server with one helper, instead of alone.
        learning_rate: None: the rule's.
    """
    planned = epsilon if math.isfinite(epsilon) else NO_LIMIT
    trained = train_as_quickstart(
        data.onnx,
        data.reported.features,
        data.reported.labels,
        network=data.network,
        epsilon=epsilon,
        seed=seed,
        learning_rate=learning_rate or rule(data, planned),
        collusion_epsilon=epsilon if is_colluding else NO_LIMIT,
    )
    test, panel = (
        score(predict(trained.onnx, records.features)[:, 0], records, trained.cost)
        for records in (data.test, data.panel)
    )
    return Trained(test=test, panel=panel)


def rule(data: Prepared, epsilon: float) -> float:
    """The learning rate that quickstart's rule chooses, of gradients over the clip bound."""
    parameters = parse(data.onnx, num_features=data.encoder.num_features).num_parameters
    return choose_learning_rate(
        rows=len(data.reported.labels), epsilon=epsilon, parameters=parameters, network=data.network
    )


class Tables(nn.Module):
    """A prepared data set's network in torch, with its first weights: tables, numbers, a linear layer."""

    def __init__(self, data: Prepared) -> None:
        super().__init__()
        encoder = data.encoder
        self._starts = [0, *accumulate(column.num_bytes for column in encoder.columns)]
        self._encoder = encoder
        values = [
            torch.from_numpy(value.copy())
            for value in parse(data.onnx, num_features=encoder.num_features).initial_values
        ]
        self.is_logistic = len(values) == 1
        if self.is_logistic:
            rows = [column.rows for column in encoder.columns if isinstance(column, IdColumn)]
            self.offsets = torch.tensor([0, *accumulate(rows)][:-1])
            self.tables = nn.ModuleList([_embedding(values[0])])
            return
        self.tables = nn.ModuleList(map(_embedding, values[:-2]))
        self.linear = nn.Linear(values[-2].shape[1], 1)
        self.linear.weight.data, self.linear.bias.data = values[-2], values[-1]

    def forward(self, features: Tensor) -> Tensor:
        """Logits (records, 1) of bytes (records, features)."""
        rows = self._rows(features.long())
        if self.is_logistic:
            found: Tensor = self.tables[0](rows + self.offsets).sum(1)
            return found
        numbers = [
            at
            for at, column in zip(self._starts, self._encoder.columns, strict=False)
            if isinstance(column, NumberColumn)
        ]
        places = list(range(len(self._encoder.columns)))
        if len(self.tables) < len(places):
            places = [
                place
                for place, column in enumerate(self._encoder.columns)
                if not isinstance(column, NumberColumn)
            ]
        looked_up = [table(rows[:, [place]])[:, 0] for table, place in zip(self.tables, places, strict=True)]
        centred = features[:, numbers].float() / 128 - 1
        joined: Tensor = self.linear(torch.cat([*looked_up, centred], 1))
        return joined

    def _rows(self, features: Tensor) -> Tensor:
        """Each column's index, (records, columns): its bytes, the lowest first."""
        return torch.stack(
            [
                sum(
                    (features[:, at] << 8 * byte for byte, at in enumerate(range(start, end))),
                    torch.zeros(()),
                )
                for start, end in zip(self._starts, self._starts[1:], strict=False)
            ],
            1,
        ).long()

    def logits(self, features: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Logits (records,)."""
        with torch.no_grad():
            return np.asarray(self(torch.from_numpy(features))[:, 0].numpy())


def _embedding(values: Tensor) -> nn.Embedding:
    return nn.Embedding(len(values), values.shape[1], _weight=values)


def _embedding_norms(layer: nn.Embedding, _: list[Tensor], backprops: Tensor) -> dict[Tensor, Tensor]:
    """Norms of records' gradients of a table in which each one looks up different rows, (records,).

    Opacus's own function, which merges a record's equal rows, takes a second and more a step here.
    """
    return {layer.weight: backprops.flatten(1).norm(dim=1)}


def train_opacus(data: Prepared, *, epsilon: float, seed: int, clip_norm: float = OPACUS_CLIP) -> Score:
    """Train by Opacus: a curator who sees everything, with the job's rounds, batch, rate and schedule."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.grad_sample.utils import register_norm_sampler
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    register_norm_sampler(nn.Embedding)(_embedding_norms)
    network = Tables(data)
    features, labels = torch.from_numpy(data.reported.features), torch.from_numpy(data.reported.labels)
    rate, schedule = rule(data, epsilon) / clip_norm, Schedule(kind=ScheduleKind.COSINE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hooks on inputs that need no gradient
        module = GradSampleModuleFastGradientClipping(
            network, max_grad_norm=clip_norm, use_ghost_clipping=True, loss_reduction="mean"
        )
        sgd = torch.optim.SGD(module.parameters(), lr=rate, momentum=MOMENTUM)
        optimizer = DPOptimizerFastGradientClipping(
            sgd,
            noise_multiplier=opacus_noise(epsilon, 1.0, ROUNDS),
            max_grad_norm=clip_norm,
            expected_batch_size=len(labels),
            generator=torch.Generator().manual_seed(seed),
        )
        loss = DPLossFastGradientClipping(
            module, optimizer, nn.BCEWithLogitsLoss(reduction="mean"), loss_reduction="mean"
        )
        for round_index in range(ROUNDS):
            for group in sgd.param_groups:
                group["lr"] = rate * schedule.factor(round_index, ROUNDS)
            optimizer.zero_grad()
            loss(module(features)[:, 0], labels.float()).backward()
            optimizer.step()
    return score(network.logits(data.test.features), data.test)


def train_plainly(data: Prepared, *, seed: int) -> Score:
    """Train without clip or noise on those who report; the panel says when to stop."""
    targets = data.reported.labels.astype(np.float32)
    return score(_fit(data, data.reported, targets, data.panel, seed), data.test)


def train_panel(data: Prepared, *, seed: int) -> Score:
    """Train without clip or noise on the panel alone; a quarter of it says when to stop."""
    order = np.random.default_rng(seed).permutation(len(data.panel.labels))
    held, used = np.split(order, [len(order) // _HELD])
    used_part = data.panel.part(used)
    targets = used_part.labels.astype(np.float32)
    return score(_fit(data, used_part, targets, data.panel.part(held), seed), data.test)


def train_label_dp(data: Prepared, *, epsilon: float, seed: int) -> Score:
    """Train on labels that each browser turned with probability 1 / (1 + e^epsilon), features in the clear.

    Targets are unbiased, (y' - p) / (1 - 2p), as they enter the logistic loss linearly; the panel says when
    to stop. Epsilon protects the label alone.
    """
    turned = 1 / (1 + math.exp(epsilon))
    draws = np.random.default_rng([seed, 7]).random(len(data.reported.labels)) < turned
    targets = (np.where(draws, 1 - data.reported.labels, data.reported.labels) - turned) / (1 - 2 * turned)
    return score(_fit(data, data.reported, targets.astype(np.float32), data.panel, seed), data.test)


def _fit(
    data: Prepared, used: Examples, targets: NDArray[np.float32], held: Examples, seed: int
) -> NDArray[np.float32]:
    """Train by Adam at two rates; return the test logits where the held records had the least loss."""
    x, y = torch.from_numpy(used.features), torch.from_numpy(targets)
    best_loss, best = math.inf, np.empty(0, np.float32)
    for rate in _PLAIN_RATES:
        network = Tables(data)
        optimizer = torch.optim.Adam(network.parameters(), lr=rate)
        draws = torch.Generator().manual_seed(seed)
        for _ in range(_PLAIN_EPOCHS):
            for part in torch.split(torch.randperm(len(x), generator=draws), _PLAIN_BATCH):
                optimizer.zero_grad()
                logits = network(x[part])[:, 0]
                # not torch's function, which takes no targets beyond 0 and 1
                torch.autograd.backward((nn.functional.softplus(logits) - y[part] * logits).mean())
                optimizer.step()
            found = score(network.logits(held.features), held).log_loss
            if found < best_loss:
                best_loss, best = found, network.logits(data.test.features)
    return best
