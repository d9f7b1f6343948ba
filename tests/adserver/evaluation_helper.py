"""A helper for tests of evaluations, in memory: the real scores and the real answer."""

from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import cast

from adserver.peers.replies import HelperStatus, QueryAnswer
from helper.gradient.scoring import score
from maskedlark.model import weights
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.accounting import spent
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded
from maskedlark.releases.evaluation import (
    EvaluationSpec,
    answer_evaluation,
    loss_to_evaluate,
)
from maskedlark.releases.kinds import AnyQuery
from maskedlark.reports.input_shares import InputShares
from tests.builders import World


def status_with(not_well: str = "") -> HelperStatus:
    """What a helper says of itself, as far as who asks queries looks at it."""
    return cast(HelperStatus, SimpleNamespace(not_well=not_well))


class MemoryEvaluationHelper:
    """One honest helper, without ledger, wire or disk."""

    def __init__(self, of: World, role: int, shares: InputShares, seed: int) -> None:
        self.of, self.role, self.shares = of, role, shares
        self.models: list[bytes] = []
        self.noise = partial(noise_vector, randomness=seeded(seed, f"noise of helper {role}"))

    def status(self) -> HelperStatus:
        return status_with()

    def run_query(
        self, query: AnyQuery, beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> QueryAnswer:
        assert isinstance(query, EvaluationSpec)
        spec, model = query, beside
        self.models.append(model)
        task = self.of.task
        parsed = parse(model, num_features=task.num_features)
        tensors = tuple(weights.quantise(values) for values in parsed.initial_values)
        found = score(parsed, loss_to_evaluate(task, parsed), tensors, self.shares.features, spec.num_bins)
        answer = answer_evaluation(
            task=task,
            spec=spec,
            pair=self.of.pair(self.role),
            shares=self.shares,
            bins=found.bins,
            choices=found.choices,
            noise=self.noise,
        )
        return QueryAnswer(share=answer, dataset_spent=spent(spec.charges(task), task.delta))
