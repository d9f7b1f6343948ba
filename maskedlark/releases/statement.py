"""Evidence of a release: what a helper charged for it, signed with the key that signs its tasks.

A statement says of one job or query: which task, dataset and spec, how much noise of which kind, and what the
dataset had spent just before the first and just after the last answer that it covers. A helper signs only
what its own ledger holds. `Evidence` puts both helpers' statements next to the task that they signed, so that
whoever knows the helpers' fingerprints verifies it offline. Nothing of a report, and no answer, is in it.

Statements of one release are the same bytes each time: no clock and no randomness goes into them.
"""

import math
from typing import Annotated, Final, Literal

from pydantic import Field

from maskedlark.canonical import Bytes16, Bytes32, Bytes64, canonical, decode, encode
from maskedlark.errors import InvalidTask
from maskedlark.privacy.mechanism import Mechanism, NoiseDivision
from maskedlark.releases.job import JobSpec
from maskedlark.releases.kinds import QUERY_KINDS
from maskedlark.reports.sealing import verify
from maskedlark.reports.task import Task

MAX_EVIDENCE_BYTES: Final = 1 << 20
_SIGNING_DOMAIN: Final = b"maskedlark/v1 release statement\0"
_KINDS: Final = frozenset({JobSpec.kind, *QUERY_KINDS})

Spent = Annotated[float, Field(ge=0.0)] | None
"""An epsilon that is spent; None in a task without noise, where it is infinite."""


@canonical
class ReleaseStatement:
    """What one helper says of one job or query.

    Attributes:
        version: The protocol's version.
        helper: The helper's verify_key.
        role: Its role in the task.
        task_id: The task.
        dataset_id: The dataset.
        kind: job, query, discovery, evaluation or update.
        release_id: The job's or query's id.
        spec: SHA-256 of its canonical bytes.
        answers: How many answers the statement covers: the job's rounds so far; 1 of a query.
        answers_digest: SHA-256 of the SHA-256 of each of these answers, in order.
        is_final: Whether no more answers follow: a query, or a job that is closed.
        mechanism: The noise's distribution.
        noise: How much of it each helper adds.
        noise_multiplier: The noise's scale over the sensitivity.
        min_batch_size: k, the least records of an answer that is not noise around zero.
        delta: At which both epsilons are read.
        epsilon_before: Spent against the ad server just before the first of these answers.
        epsilon_after: Just after the last one; answers of other releases between them included.
        collusion_epsilon_before: As epsilon_before, against the ad server together with the other helper.
        collusion_epsilon_after: As epsilon_after, likewise.
        numerics: The digest of the arithmetic that computed the last answer; None of a query.
        entry: The digest of the last answer's entry in the helper's audit log.
        at: When the last answer was charged, by the helper's clock: Unix seconds.
    """

    version: Literal[1] = 1
    helper: Bytes32
    role: Annotated[int, Field(ge=0, le=1)]
    task_id: Bytes32
    dataset_id: Bytes32
    kind: Annotated[str, Field(max_length=16)]
    release_id: Bytes16
    spec: Bytes32
    answers: Annotated[int, Field(ge=1, le=1_000_000)]
    answers_digest: Bytes32
    is_final: bool
    mechanism: Mechanism
    noise: NoiseDivision
    noise_multiplier: Annotated[float, Field(ge=0.0, le=1e6)]
    min_batch_size: Annotated[int, Field(ge=1)]
    delta: Annotated[float, Field(gt=0.0, lt=1.0)]
    epsilon_before: Spent
    epsilon_after: Spent
    collusion_epsilon_before: Spent
    collusion_epsilon_after: Spent
    numerics: Bytes32 | None
    entry: Bytes32
    at: Annotated[int, Field(ge=0)]

    def signing_bytes(self) -> bytes:
        """Return the bytes that a helper signs."""
        return _SIGNING_DOMAIN + encode(self)


@canonical
class SignedStatement:
    """A statement and its helper's Ed25519 signature over its `signing_bytes`."""

    statement: ReleaseStatement
    signature: Bytes64


@canonical
class Evidence:
    """One release's statements, with the task that both helpers signed.

    Attributes:
        task: The task.
        task_signatures: Each helper's signature over it, by role.
        statements: One helper's, or both, by role.
    """

    task: Task
    task_signatures: tuple[Bytes64, Bytes64]
    statements: Annotated[tuple[SignedStatement, ...], Field(min_length=1, max_length=2)]

    @classmethod
    def read(cls, encoded: bytes) -> "Evidence":
        """Parse a file of evidence, and verify it.

        Raises:
            InvalidTask: it is not a statement, or a check of `Evidence.verify` fails.
        """
        # Editors and shells end a file with a line break.
        found = decode(cls, encoded.strip(), max_bytes=MAX_EVIDENCE_BYTES)
        found.verify()
        return found

    def encode(self) -> bytes:
        """Return the file's bytes."""
        return encode(self)

    @property
    def is_within_budget(self) -> bool:
        """Return whether the spending that each helper states after the release is within both budgets."""
        return all(
            _amount(one.statement.epsilon_after) <= self.task.epsilon
            and _amount(one.statement.collusion_epsilon_after) <= self.task.collusion_epsilon
            for one in self.statements
        )

    def verify(self) -> None:
        """Check every signature, and that the statements are of this task and of one release.

        The caller has to check the helpers' identities: `task.helpers` has their keys.

        Raises:
            InvalidTask: saying which check failed.
        """
        for helper, signature in zip(self.task.helpers, self.task_signatures, strict=True):
            verify(helper.verify_key, self.task.signing_bytes(), signature)
        for one in self.statements:
            _verify_statement(one, self.task)
        _check_one_release([one.statement for one in self.statements])


def _amount(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon


def _verify_statement(signed: SignedStatement, task: Task) -> None:
    """Check one statement against the task that it names."""
    one = signed.statement
    helper = task.helpers[one.role]
    if one.helper != helper.verify_key:
        raise InvalidTask(
            f"the statement of role {one.role} is another helper's: expected one of {helper.name!r}, "
            f"whose verify_key is {helper.verify_key.hex()}"
        )
    try:
        verify(helper.verify_key, one.signing_bytes(), signed.signature)
    except InvalidTask:
        raise InvalidTask(
            f"helper {helper.name!r} did not sign this statement: it was changed, or signed with another key"
        ) from None
    said = (one.task_id, one.mechanism, one.noise, one.min_batch_size, one.delta)
    if said != (task.task_id, task.mechanism, task.noise, task.min_batch_size, task.delta):
        raise InvalidTask(f"the statement of helper {helper.name!r} contradicts the task's settings")
    if one.kind not in _KINDS:
        raise InvalidTask(
            f"the statement's kind is {one.kind!r}: expected one of {', '.join(sorted(_KINDS))}"
        )
    if task.mechanism is not Mechanism.NONE and (one.epsilon_after is None or one.epsilon_before is None):
        raise InvalidTask("the statement gives no epsilon: expected one, for the task has noise")


def _check_one_release(statements: list[ReleaseStatement]) -> None:
    """Check that two statements are both helpers' about the same release."""
    if len(statements) == 1:
        return
    first, second = statements
    if (first.role, second.role) != (0, 1):
        raise InvalidTask("two statements must be of role 0 and role 1, in this order")
    names = ("dataset_id", "kind", "release_id", "spec", "noise_multiplier")
    for name in names:
        if getattr(first, name) != getattr(second, name):
            raise InvalidTask(f"the two helpers' statements are of different releases: {name} differs")
