"""Keys, tasks and reports for tests: the smallest honest world, with all parties' secrets in one place."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from maskedlark import canonical
from maskedlark.errors import ReportReason
from maskedlark.model.losses import Loss
from maskedlark.privacy.accounting import smallest_fitting
from maskedlark.privacy.charge import Charge
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import Randomness, below, seeded
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.round import Evaluated, MaskedSum, SumFunction, aggregate
from maskedlark.reports import input_shares, report
from maskedlark.reports.dataset import (
    AdmittedSet,
    OpenedDataset,
    PreparedShares,
    ShareForHelper,
    ShareOpener,
    canonical_order,
    dataset_id,
)
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.report import Example, SplitExample
from maskedlark.reports.sealing import OpeningKey, SignedKeyList
from maskedlark.reports.task import HelperIdentity, Task, TaskBundle
from maskedlark.reports.upload import Report, ReportCheck, SealedShare, Sealer
from protos import report_pb2

NOW = 1_800_000_000
REPORT_ID = bytes(range(16))
FAR = 1 << 40  # when nobody seals any more


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperKeys:
    """One helper's secrets."""

    signing: Ed25519PrivateKey
    agreement: X25519PrivateKey
    opening: OpeningKey

    def identity(self, name: str) -> HelperIdentity:
        return HelperIdentity(
            name=name,
            verify_key=self.signing.public_key().public_bytes_raw(),
            agreement_key=self.agreement.public_key().public_bytes_raw(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A task and everybody's keys."""

    task: Task
    bundle: TaskBundle
    keys: tuple[HelperKeys, HelperKeys]

    def pair(self, role: int) -> PairKey:
        return PairKey.agree(self.keys[role].agreement, self.task, role)

    def opener(self, role: int) -> ShareOpener:
        return ShareOpener(
            task=self.task,
            role=role,
            opening_keys=[self.keys[role].opening],
            view_key=self.pair(role).view_key,
        )

    def datasets(self, reports: list[Report]) -> tuple[OpenedDataset, OpenedDataset]:
        """Both helpers' datasets of what both admit."""
        prepared = [self.opener(role).open(shares_for(reports, role)) for role in (0, 1)]
        chosen = prepared[0].admitted.intersect(prepared[1].admitted)
        first, second = (open_dataset(self.task.task_id, one, chosen) for one in prepared)
        return first, second


def job_spec(task_id: bytes, **changes: Any) -> JobSpec:
    """A job of one round over a whole dataset, without noise."""
    given: dict[str, Any] = {
        "job_id": b"j" * 16,
        "dataset_id": bytes(32),
        "model_digest": bytes(32),
        "loss": Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
        "rounds": 1,
        "sampling_numerator": 1 << 32,
        "noise_multiplier": 0.0,
        **changes,
    }
    return JobSpec(task_id=task_id, **given)


def helper_keys(key_id: int = 1, suite: HpkeSuite = HpkeSuite.X25519_AES128GCM) -> HelperKeys:
    return HelperKeys(
        signing=Ed25519PrivateKey.generate(),
        agreement=X25519PrivateKey.generate(),
        opening=OpeningKey.generate(key_id=key_id, suite=suite),
    )


def settings(**changes: Any) -> dict[str, Any]:
    """Task settings without the helpers."""
    return {
        "origin": "https://ads.example",
        "name": "conversions",
        "salt": bytes(range(16)),
        "num_features": 4,
        "labels": {"kind": "classes", "size": 2, "default_label": 0},
        "num_decoys": 1,
        "min_batch_size": 2,
        "mechanism": "none",
        "norm": "l2",
        "clip_norm": 1.0,
        "epsilon": 8.0,
        "collusion_epsilon": 80.0,
        "delta": 1e-5,
        "starts_at": NOW - 86_400,
        "expires_at": NOW + 30 * 86_400,
        **changes,
    }


def world(
    *,
    suite: HpkeSuite = HpkeSuite.X25519_AES128GCM,
    keys: tuple[HelperKeys, HelperKeys] | None = None,
    **changes: Any,
) -> World:
    keys = keys or (helper_keys(1, suite), helper_keys(2, suite))
    task = canonical.build(
        Task, settings(helpers=(keys[0].identity("north"), keys[1].identity("south")), **changes)
    )
    return World(task=task, bundle=bundle(task, keys), keys=keys)


def bundle(task: Task, keys: tuple[HelperKeys, HelperKeys]) -> TaskBundle:
    return TaskBundle(
        task=task,
        signatures=(keys[0].signing.sign(task.signing_bytes()), keys[1].signing.sign(task.signing_bytes())),
        key_lists=(
            SignedKeyList.sign(keys[0].signing, (keys[0].opening.public(),), not_after=FAR),
            SignedKeyList.sign(keys[1].signing, (keys[1].opening.public(),), not_after=FAR),
        ),
    )


def examples(task: Task, count: int, randomness: Randomness | None = None) -> list[Example]:
    """Random features and labels."""
    randomness = randomness or seeded(7, "examples")
    labels = below(task.labels.size, count, randomness) if count else np.empty(0, np.uint64)
    return [
        Example(features=random_features(task.num_features, randomness), label=float(label))
        for label in labels
    ]


def random_features(count: int, randomness: Randomness) -> NDArray[np.uint8]:
    return np.frombuffer(randomness(count), np.uint8)


def reports(of: World, given: list[Example], randomness: Randomness | None = None) -> list[Report]:
    sealer = Sealer(of.bundle, now=NOW)
    randomness = randomness or seeded(8, "reports")
    return [sealer.report(example, unix_s=NOW, randomness=randomness) for example in given]


def shares_for(sealed: list[Report], role: int) -> list[ShareForHelper]:
    return [
        ShareForHelper(report_id=one.report_id, time_bucket=one.time_bucket, share=one.shares[role])
        for one in sealed
    ]


def share_to_message(share: SealedShare) -> report_pb2.SealedShare:
    return report_pb2.SealedShare(key_id=share.key_id, ciphertext=share.ciphertext)


def split(task: Task, example: Example, randomness: Randomness, report_id: bytes = REPORT_ID) -> SplitExample:
    """The plaintexts of a report of some id."""
    [both] = report.split(task, [example], [randomness], report_ids=[report_id], task_id=task.task_id)
    return both


def decode_shares(
    task: Task, plaintexts: NDArray[np.uint8], *, role: int = 0, report_ids: Sequence[bytes] | None = None
) -> tuple[InputShares, list[ReportReason | None]]:
    """What a helper finds in plaintexts, of `REPORT_ID` unless told otherwise; and why it drops each."""
    ids = [REPORT_ID] * len(plaintexts) if report_ids is None else report_ids
    decoded = input_shares.decode_shares(task, plaintexts, role=role, report_ids=ids, task_id=task.task_id)
    return decoded.shares, decoded.reasons


def open_dataset(task_id: bytes, prepared: PreparedShares, chosen: NDArray[np.bool_]) -> OpenedDataset:
    """The dataset of the chosen rows, all admitted, as a helper has it when it was committed."""
    rows = np.flatnonzero(chosen)
    rows = rows[canonical_order(prepared.report_ids[rows])]
    report_ids = prepared.report_ids[rows]
    return OpenedDataset(
        dataset_id=dataset_id(task_id, report_ids, prepared.admitted.view_tags[rows]),
        report_ids=report_ids,
        shares=prepared.shares.rows(rows),
    )


def id_of_reports(task_id: bytes, reports: Sequence[Report], view_tags: NDArray[np.uint8]) -> bytes:
    """The id of a dataset of these reports, whose tags are in the same order."""
    ids = np.frombuffer(b"".join(one.report_id for one in reports), np.uint8).reshape(-1, 16)
    order = canonical_order(ids)
    return dataset_id(task_id, ids[order], view_tags[order])


def joined_sets(parts: Sequence[AdmittedSet], dropped: Counter[ReportReason]) -> AdmittedSet:
    """What a helper admits of all chunks of a preparation."""
    return AdmittedSet(
        is_admitted=np.concatenate([part.is_admitted for part in parts]),
        view_tags=np.concatenate([part.view_tags for part in parts]),
        dropped=dropped,
    )


def of_shares(shares: InputShares, masked_sum: Callable[[InputShares], MaskedSum]) -> SumFunction:
    """A round's sum function over a dataset that is in memory, in canonical order."""

    def summed(evaluated: Evaluated) -> MaskedSum:
        return masked_sum(evaluated.of(shares, np.arange(len(shares))))

    return summed


def zeros(task: Task, count: int = 1, *, sensitivity: int | None = None) -> MaskedSum:
    """What an engine gives that sums nobody, or values that are all zero."""
    bound = task.clip.sensitivity if sensitivity is None else sensitivity
    return MaskedSum(vector=np.zeros(count, np.uint64), values_digest=bytes(32), sensitivity=bound)


def helper_share(
    of: World,
    job: JobSpec,
    role: int,
    summed: SumFunction,
    *,
    records: int,
    num_values: int = 1,
    round_index: int = 0,
    script: bytes = bytes(32),
    noise: Randomness | None = None,
    **more: Any,
) -> AggregateShare:
    """One helper's answer to a round, whose engine is `summed`."""
    return aggregate(
        task=of.task,
        job=job,
        pair=of.pair(role),
        round_index=round_index,
        round_transcript=script,
        records=records,
        masked_sum=summed,
        num_values=num_values,
        noise=partial(noise_vector, randomness=noise or seeded(role, "noise")),
        **more,
    )


def fitting_noise(
    epsilon: float, delta: float, *, already: Sequence[Charge], collusion_epsilon: float, **settings: Any
) -> float:
    """The least noise multiplier of a charge with these settings within both budgets: `smallest_fitting`."""
    is_noisy = settings["mechanism"] is not Mechanism.NONE
    return smallest_fitting(
        (lambda noise: (Charge(noise_multiplier=noise, **settings),)) if is_noisy else None,
        epsilon,
        delta,
        already=already,
        collusion_epsilon=collusion_epsilon,
    )


def check_report(task: Task, report: Report) -> None:
    """Refuse a report as the ad server's intake does."""
    ReportCheck(task).check(report)
