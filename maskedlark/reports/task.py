"""Step 0: the task, the public settings that browsers, helpers and ad server all act on.

A task is immutable: its id is the SHA-256 of its canonical bytes, both helpers sign those bytes when they
accept it, browsers seal only to a task with both signatures, and every seal, dataset and round is bound to
the id. The paper's "public parameter server" (section 4.2.2) is any host that serves a `TaskBundle`.
"""

from fractions import Fraction
from functools import lru_cache
from math import ceil, floor
from operator import not_
from typing import Annotated, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from maskedlark.canonical import Bytes16, Bytes32, Bytes64, canonical, digest, encode
from maskedlark.errors import InvalidTask, ReportReason, ReportRejected
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.privacy.mechanism import Mechanism, NoiseDivision
from maskedlark.reports.measurement import MAX_CODE, Measurement
from maskedlark.reports.origin import Origin
from maskedlark.reports.proofs.shape import ProofShape, proof_shape
from maskedlark.reports.sealing import SignedKeyList, verify
from maskedlark.reports.task_kinds import LabelKind, PrivacyUnit
from maskedlark.reports.updates import UpdateForm

VERSION: Final = 1
MAX_FEATURES: Final = 65_536
MAX_CANDIDATES: Final = 1_024
REPORT_ID_BYTES: Final = 16
REPORT_DIGEST_BYTES: Final = 16
MAX_DATASET_SIZE: Final = 33_000_000
"""A commit names the chosen reports by a bit each, in one message of 4 MiB."""
VIEW_NONCE_BYTES: Final = 16
MIN_CLIP_NORM: Final = 2.0**-10
MAX_CLIP_NORM: Final = 2.0**10
_SIGNING_DOMAIN: Final = b"maskedlark/v1 task\0"
_NORM_OF: Final = {Mechanism.LAPLACE: Norm.L1, Mechanism.GAUSSIAN: Norm.L2}


@canonical
class LabelSpace:
    """The labels that a report can hold.

    Attributes:
        kind: Classes or real values.
        size: Labels are the integers 0 to size - 1.
        num_buckets: For values: how many even buckets [0, size - 1] is cut into (section 4.1.1). None for
            classes.
        default_label: What an impression that expires without a conversion reports; then every report holds
            this label among its candidates. None: no label is special, and decoys are drawn from all others.
    """

    kind: LabelKind
    size: Annotated[int, Field(ge=2, le=1 << 20)]
    num_buckets: Annotated[int, Field(ge=1, le=65_536)] | None = None
    default_label: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind is LabelKind.VALUES) != (self.num_buckets is not None):
            raise ValueError("num_buckets goes with labels of kind values, and only with them")
        if self.num_buckets is not None and self.num_buckets > self.size - 1:
            raise ValueError("num_buckets is at most the largest value")
        if self.default_label is not None and not self._holds(self.default_label):
            raise ValueError("default_label is a label of the space")
        return self

    def boundaries(self) -> tuple[Fraction, ...]:
        """Return the exact bucket boundaries of values, from 0 to size - 1."""
        buckets = self.num_buckets or self.size - 1
        return tuple(Fraction(i * (self.size - 1), buckets) for i in range(buckets + 1))

    def reachable(self) -> tuple[int, ...]:
        """Return every label that a report can hold, ascending.

        All classes, or the integers next to a bucket boundary.
        """
        return _reachable(self)

    @property
    def num_reachable(self) -> int:
        """The number of labels that a report can hold, found without listing them."""
        return self.size if self.kind is LabelKind.CLASSES else len(self.reachable())

    def _holds(self, label: int) -> bool:
        return label < self.size if self.kind is LabelKind.CLASSES else label in self.reachable()


# Asked for with every report, and a space may have a million labels.
@lru_cache(maxsize=16)
def _reachable(labels: LabelSpace) -> tuple[int, ...]:
    match labels.kind:
        case LabelKind.CLASSES:
            return tuple(range(labels.size))
        case LabelKind.VALUES:
            ends = labels.boundaries()
            return tuple(sorted({rounded for end in ends for rounded in (floor(end), ceil(end))}))


@canonical
class HelperIdentity:
    """One helper's long-term public keys.

    Attributes:
        name: The operator, as people know it.
        verify_key: Ed25519: signs tasks and key lists.
        agreement_key: X25519: agrees on the key that both helpers draw blinds and samples from.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    verify_key: Bytes32
    agreement_key: Bytes32

    @property
    def fingerprint(self) -> str:
        """Both long-term keys of the helper as one hex number, for people to compare.

        A helper with the same number under another name is the same helper.
        """
        return digest("helper identity", self.verify_key, self.agreement_key).hex()


def task_id_of(encoded: bytes) -> bytes:
    """Return the id of an encoded task, 32 bytes."""
    return digest("task", encoded)


@canonical
class Task:
    """The public settings of one measurement or training purpose.

    Attributes:
        version: The protocol's version.
        origin: The ad-tech origin that may use the reports, as browsers spell it; a helper serves the task to
            no other.
        name: For people.
        salt: Random bytes, so that two tasks of equal settings are two tasks.
        helpers: The two helpers, by role.
        num_features: Each report holds this many bytes.
        labels: The label space.
        num_decoys: Decoy labels in each report, in addition to the real one; `labels` less one means all
            classes.
        fake_report_rate: The share of reports that browsers send with decoys only, in [0, 1).
        feature_epsilon: Local differential privacy of each feature byte (section 4.2.3), or None for none.
        min_batch_size: The k of k-anonymity: fewer admitted or sampled records give noise around zero.
        mechanism: The noise that each helper adds; `none` only for loopback debugging.
        noise: Whether each helper adds all of the noise, or half of its variance (Gaussian only). Split,
            either helper together with the ad server faces 1/sqrt(2) of the noise that `noise_multiplier`
            names; the budgets are charged so.
        norm: The norm in which per-example values are clipped: L1 for Laplace, L2 for Gaussian.
        clip_norm: The largest bound in that norm; a job may have a smaller one.
        frac_bits: Gradients are integers in units of 2^-frac_bits.
        epsilon: The budget of one dataset against the ad server. Both budgets are of zeroing one report; to
            tell one label from another costs more.
        collusion_epsilon: The budget of one dataset against the ad server together with one helper: one
            helper's noise only, and no amplification by sampling.
        delta: The delta that both budgets are read at.
        max_dataset_size: The most reports in one dataset.
        time_bucket_s: Reports carry their time rounded down to this many seconds.
        starts_at: Reports of earlier time buckets are dropped (Unix seconds).
        expires_at: Reports of time buckets from here on are dropped, and jobs refused (Unix seconds).
        measurement: The values that queries sum, and the keys that they group by; None for a task that only
            trains.
        unit: Whether the budgets are of a dataset, and protect a report, or of the whole task, and protect
            a person.
        reports_per_user: With unit user: the most reports of one person in one dataset. Browsers keep to
            it; helpers cannot see it.
        updates: The content of update reports, in a task of federated training. Its features and labels then
            describe the devices' data, and no report holds any. None for a task of masked labels.
        encoder: The digest of the encoder (`maskedlark.encoding`) that makes features of what browsers know,
            so that all use the same one; None for a task that leaves it to them.
        proof: Whether each report proves that its mask is all zeros or a single 1 and that its values lie in
            their ranges. Off, the field is left out of the canonical bytes.
    """

    version: Literal[1] = VERSION
    origin: Origin
    name: Annotated[str, Field(min_length=1, max_length=200)]
    salt: Bytes16
    helpers: tuple[HelperIdentity, HelperIdentity]
    num_features: Annotated[int, Field(ge=1, le=MAX_FEATURES)]
    labels: LabelSpace
    num_decoys: Annotated[int, Field(ge=1, lt=MAX_CANDIDATES)]
    fake_report_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    feature_epsilon: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    min_batch_size: Annotated[int, Field(ge=1, le=1 << 30)]
    mechanism: Mechanism
    noise: NoiseDivision = NoiseDivision.FULL
    norm: Norm
    clip_norm: Annotated[float, Field(ge=MIN_CLIP_NORM, le=MAX_CLIP_NORM)]
    frac_bits: Annotated[int, Field(ge=16, le=40)] = 32
    epsilon: Annotated[float, Field(gt=0.0, le=1e6)]
    collusion_epsilon: Annotated[float, Field(gt=0.0, le=1e6)]
    delta: Annotated[float, Field(gt=0.0, lt=1.0)]
    max_dataset_size: Annotated[int, Field(ge=1, le=MAX_DATASET_SIZE)] = 1 << 20
    time_bucket_s: Annotated[int, Field(ge=1, le=31 * 86_400)] = 3_600
    starts_at: Annotated[int, Field(ge=0, le=1 << 40)]
    expires_at: Annotated[int, Field(ge=0, le=1 << 40)]
    measurement: Measurement | None = None
    # Left out of the canonical bytes where they say nothing new: so tasks that were signed before they
    # existed keep their ids.
    unit: Annotated[PrivacyUnit, Field(exclude_if=lambda unit: unit is PrivacyUnit.REPORT)] = (
        PrivacyUnit.REPORT
    )
    reports_per_user: Annotated[int, Field(ge=1, le=1 << 10, exclude_if=lambda count: count == 1)] = 1
    updates: Annotated[UpdateForm | None, Field(exclude_if=lambda form: form is None)] = None
    proof: Annotated[bool, Field(exclude_if=not_)] = False
    encoder: Annotated[Bytes32 | None, Field(exclude_if=lambda digest: digest is None)] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_unit()
        if self.num_candidates > self.labels.num_reachable:
            raise ValueError("num_decoys is at most the number of other labels")
        if (
            self.helpers[0].agreement_key == self.helpers[1].agreement_key
            or self.helpers[0].verify_key == self.helpers[1].verify_key
        ):
            raise ValueError("the two helpers have different keys")
        if _NORM_OF.get(self.mechanism, self.norm) is not self.norm:
            raise ValueError("Laplace noise goes with norm l1, Gaussian with norm l2")
        if self.noise is NoiseDivision.SPLIT and self.mechanism is not Mechanism.GAUSSIAN:
            raise ValueError("noise split goes with mechanism gaussian")
        if self.expires_at <= self.starts_at:
            raise ValueError("expires_at is after starts_at")
        if self.min_batch_size > self.max_dataset_size:
            raise ValueError("min_batch_size is at most max_dataset_size")
        return self

    def _check_unit(self) -> None:
        if self.unit is PrivacyUnit.REPORT and self.reports_per_user != 1:
            raise ValueError("reports_per_user goes with unit user")
        if self.updates is None:
            return
        # A round's noise is for one update of each person, and its budget for the person over all rounds.
        if self.unit is not PrivacyUnit.USER or self.reports_per_user != 1:
            raise ValueError("updates go with unit user, and one report of each person in a round")
        if self.norm is not Norm.L2 or self.mechanism is Mechanism.LAPLACE:
            raise ValueError("updates go with norm l2, and mechanism gaussian or none")
        if self.proof:
            raise ValueError("updates go with no proof: a proof is of masks and measured values")
        if self.measurement is not None or self.feature_epsilon is not None or self.fake_report_rate:
            raise ValueError(
                "updates go with no measurement, feature_epsilon or fake_report_rate: their reports hold "
                "none of it"
            )

    @property
    def task_id(self) -> bytes:
        """SHA-256 of the canonical bytes, 32 bytes."""
        return task_id_of(encode(self))

    def signing_bytes(self) -> bytes:
        """Return the bytes that a helper signs to accept the task."""
        return _SIGNING_DOMAIN + encode(self)

    @property
    def num_candidates(self) -> int:
        """Labels in each report: the real one and its decoys."""
        return self.num_decoys + 1

    @property
    def clip(self) -> Clip:
        """The bound on one record's value."""
        return Clip(norm=self.norm, bound=self.clip_norm, frac_bits=self.frac_bits)

    @property
    def key_sizes(self) -> NDArray[np.int64]:
        """The exclusive bound of each measured key's codes: int64 (K,)."""
        keys = self.measurement.keys if self.measurement else ()
        return np.array([MAX_CODE + 1 if key.size is None else key.size for key in keys], np.int64)

    @property
    def proof_shape(self) -> ProofShape | None:
        """The shape of reports' proofs, or None in a task without proofs."""
        return proof_shape(self.num_candidates, self.measurement) if self.proof else None

    def plaintext_length(self, role: int) -> int:
        """Return the length of every plaintext that a role opens, in bytes."""
        if self.updates is not None:
            return self.updates.share_length(role=role)
        shape = self.proof_shape
        return self.opened_length if shape is None else self.view_length + shape.length(role)

    @property
    def share_length(self) -> int:
        """The length of the longer role's plaintexts, in bytes: a view and shares, a proof, an update."""
        return self.plaintext_length(role=1)

    @property
    def opened_length(self) -> int:
        """The bytes a helper keeps of a report: view, mask shares, value shares; or an update."""
        if self.updates is not None:
            return self.updates.share_length(role=1)
        return (
            self.view_length
            + 8 * self.num_candidates
            + (self.measurement.share_bytes if self.measurement else 0)
        )

    @property
    def view_length(self) -> int:
        """The length of what both helpers read alike of a share, at its beginning.

        Version, nonce, features, labels, keys.
        """
        return (
            1
            + VIEW_NONCE_BYTES
            + self.num_features
            + 4 * self.num_candidates
            + (self.measurement.view_bytes if self.measurement else 0)
        )

    def time_bucket(self, unix_s: float) -> int:
        """Return the bucket that a moment falls into."""
        return int(unix_s // self.time_bucket_s)

    @property
    def time_buckets(self) -> range:
        """Those of the task's period, at least one. For many reports it is asked for once."""
        # The period ends before expires_at: its last second counts, and the bucket of that.
        return range(self.starts_at // self.time_bucket_s, (self.expires_at - 1) // self.time_bucket_s + 1)

    def check_time_bucket(self, time_bucket: int) -> None:
        """Refuse a report from outside the task's period.

        Raises:
            ReportRejected(OUTSIDE_TASK_PERIOD)
        """
        if time_bucket not in self.time_buckets:
            raise self.outside_period(time_bucket)

    def outside_period(self, time_bucket: int) -> ReportRejected:
        """Build the error for a report from outside the task's period."""
        first, last = self.time_buckets[0], self.time_buckets[-1]
        return ReportRejected(
            ReportReason.OUTSIDE_TASK_PERIOD, f"time bucket {time_bucket} is not in {first}..{last}"
        )


@canonical
class TaskBundle:
    """What a task host serves to browsers: the task, both helpers' signatures on it, and the keys to seal to.

    Attributes:
        task: The settings.
        signatures: Each helper's Ed25519 signature over `task.signing_bytes()`, by role.
        key_lists: Each helper's signed HPKE keys, by role.
    """

    task: Task
    signatures: tuple[Bytes64, Bytes64]
    key_lists: tuple[SignedKeyList, SignedKeyList]

    def verify(self) -> None:
        """Check all four signatures. Called by the browser before it seals anything.

        Raises:
            InvalidTask: a helper did not sign the task or its keys.
        """
        for helper, signature, keys in zip(self.task.helpers, self.signatures, self.key_lists, strict=True):
            try:
                verify(helper.verify_key, self.task.signing_bytes(), signature)
                keys.verify(helper.verify_key)
            except InvalidTask as error:
                raise InvalidTask(f"helper {helper.name!r}: {error}") from None

    def check_fresh(self, now: float) -> None:
        """Refuse key lists that have expired. Called by the browser, with the time of its clock.

        Raises:
            InvalidTask: one has expired.
        """
        for helper, keys in zip(self.task.helpers, self.key_lists, strict=True):
            try:
                keys.check_fresh(now)
            except InvalidTask as error:
                raise InvalidTask(f"helper {helper.name!r}: {error}") from None
