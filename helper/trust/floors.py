"""The floors of a helper's operator.

The helper refuses to sign a task below them, and stops serving one that was signed before they were raised.
"""

import string
from typing import TYPE_CHECKING, Final

from maskedlark.errors import InvalidSetting, JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model.limits import HELPER_PARAMETERS
from maskedlark.privacy.mechanism import Mechanism, NoiseDivision

if TYPE_CHECKING:
    from maskedlark.reports.task import HelperIdentity, Task

ROUND_BYTES: Final = 4 << 30
"""Most memory of one round where the operator says nothing and the machine is not asked."""
PREPARED_BYTES: Final = 4 << 30
"""Room for the preparations of all tasks together, unless the operator says otherwise."""
MOST_HELD_BYTES: Final = 64 << 30
"""The most that one ad server holds on the disk and in the bucket, unless the operator says otherwise."""
_FINGERPRINT_DIGITS: Final = 64
_MIB: Final = 1 << 20


@frozen
class WorkEstimate:
    """What some work at a helper will take, estimated from counts before it begins.

    Attributes:
        seconds: Of one core.
        num_bytes: Of memory, at once.
    """

    seconds: float
    num_bytes: int


@frozen
class Floors:
    """The operator's limits.

    A task is refused if it asks for less privacy, or for more memory, than they allow.

    Attributes:
        min_batch_size: The least min_batch_size (k) of a task, and min_cell_count of its measurement.
        max_epsilon: The most that one dataset may spend against the ad server.
        max_collusion_epsilon: The same, against the ad server together with the other helper.
        max_delta: The largest delta that budgets may be read at.
        min_decoys: The fewest decoy labels in each report.
        max_dataset_size: The most reports in one dataset.
        max_dataset_bytes: The most bytes that one opened dataset may take.
        max_round_seconds: The most processor time of one core that one round may take, by estimate.
        max_round_bytes: The most memory that one round may take, by estimate. Rounds, queries and evaluations
            together take up to twice as much.
        max_parameters: The most parameters of a model: a round takes about 80 bytes of memory for each.
        max_tasks_per_origin: The most tasks that one origin's host may have open.
        is_split_noise_allowed: Whether tasks are served in which this helper adds only half of the noise's
            variance, and so relies on the other one for the rest.
        is_noise_optional: Whether tasks without noise are served: for debugging on loopback only.
        is_proof_required: Whether tasks are refused whose reports prove nothing.
        peers: Fingerprints of the helpers that this one works with; empty for any. What both helpers are
            trusted not to do together, this operator can only ask of those that it knows.
    """

    min_batch_size: int = 20
    max_epsilon: float = 8.0
    max_collusion_epsilon: float = 16.0
    max_delta: float = 1e-5
    min_decoys: int = 1
    max_dataset_size: int = 1 << 20
    max_dataset_bytes: int = 4 << 30
    max_tasks_per_origin: int = 200
    max_round_seconds: float = 3_600.0
    max_round_bytes: int = ROUND_BYTES
    max_parameters: int = HELPER_PARAMETERS
    is_noise_optional: bool = False
    is_split_noise_allowed: bool = False
    is_proof_required: bool = False
    peers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse limits that no task could keep, and what can be no fingerprint.

        So that a mistake is noticed before it refuses every task.

        Raises:
            InvalidSetting: naming it.
        """
        for name in ("max_epsilon", "max_collusion_epsilon", "max_delta"):
            if not getattr(self, name) > 0:  # which not-a-number is not either
                raise InvalidSetting(
                    f"--{name.replace('_', '-')} is {getattr(self, name):g}, which would refuse everything: "
                    "expected more than 0"
                )
        # A delta is a probability, below 1 in every task
        if self.max_delta >= 1:
            raise InvalidSetting(
                f"--max-delta is {self.max_delta:g}, which would allow every task: expected less than 1"
            )
        # Here, for the command's help does without
        from maskedlark.reports.task import MAX_CANDIDATES, MAX_DATASET_SIZE

        for option, least, most, limit in (
            ("min-batch-size-floor", self.min_batch_size, self.max_dataset_size, "--max-dataset-size"),
            ("min-batch-size-floor", self.min_batch_size, MAX_DATASET_SIZE, "the most of any task"),
            ("min-decoys", self.min_decoys, MAX_CANDIDATES - 1, "the most of any task"),
        ):
            if least > most:
                raise InvalidSetting(
                    f"--{option} is {least}, which would refuse everything: expected at most {most} ({limit})"
                )
        for one in self.peers:
            if len(one) != _FINGERPRINT_DIGITS or not set(one) <= set(string.hexdigits.lower()):
                raise InvalidSetting(
                    f"{one!r} is not a fingerprint: expected {_FINGERPRINT_DIGITS} hexadecimal digits, as "
                    "`lark-helper keygen` and `lark-helper keys list` print"
                )

    def check(self, task: "Task") -> None:
        """Refuse a task below the floors.

        Called before it is signed, and each time it is served: floors may have been raised since.

        Raises:
            JobRefused(TASK_REFUSED): naming the setting, the task's value and the floor.
        """
        if task.mechanism is Mechanism.NONE and not self.is_noise_optional:
            _refuse(
                "mechanism none is for loopback debugging: this helper was not started with --allow-no-noise"
            )
        if task.noise is NoiseDivision.SPLIT and not self.is_split_noise_allowed:
            _refuse(
                "noise is split between the helpers: this helper was not started with --allow-split-noise"
            )
        if not task.proof and task.updates is None and self.is_proof_required:
            _refuse(
                "proof is off: this helper accepts only tasks with proofs, because it was started "
                "with --require-proof"
            )
        at_least: tuple[tuple[str, int, int], ...] = (
            ("min_batch_size", task.min_batch_size, self.min_batch_size),
            ("num_decoys", task.num_decoys, self.min_decoys),
        )
        at_most = (
            ("epsilon", task.epsilon, self.max_epsilon),
            ("collusion_epsilon", task.collusion_epsilon, self.max_collusion_epsilon),
            ("delta", task.delta, self.max_delta),
            ("max_dataset_size", task.max_dataset_size, self.max_dataset_size),
            (
                "max_dataset_size times the share's bytes",
                task.max_dataset_size * task.opened_length,
                self.max_dataset_bytes,
            ),
        )
        # A cell of a measurement is a group as a batch is: one floor for both.
        if task.measurement is not None:
            at_least += (
                ("measurement.min_cell_count", task.measurement.min_cell_count, self.min_batch_size),
            )
        for name, value, least in at_least:
            if value < least:
                _refuse(f"{name} is {value}, but this helper requires at least {least}")
        for setting, asked, most in at_most:
            if not asked <= most:  # also where the limit is NaN
                _refuse(f"{setting} is {asked:g}, but this helper allows at most {most:g}")

    def check_cost(self, cost: WorkEstimate, what: str) -> None:
        """Refuse work that takes too long or too much memory. Called before it begins or costs anything.

        Args:
            cost: By estimate.
            what: The work, as a message begins: "a round of this job".

        Raises:
            JobRefused(TOO_LARGE): naming the estimate, the limit and the option that sets it.
        """
        # Not `>`: an estimate that is no number is refused as well.
        if not cost.seconds <= self.max_round_seconds:
            raise JobRefused(
                JobReason.TOO_LARGE,
                f"{what} would take about {_format_seconds(cost.seconds)} core seconds, but this helper "
                f"allows at most {self.max_round_seconds:,g} (--max-round-seconds): use a smaller model, "
                "fewer records, or a graph that has an exact form",
            )
        if not cost.num_bytes <= self.max_round_bytes:
            raise JobRefused(
                JobReason.TOO_LARGE,
                f"{what} would take about {cost.num_bytes / _MIB:,.0f} MiB of memory, but this helper allows"
                f" at most {self.max_round_bytes / _MIB:,.0f} (--max-round-bytes): use a smaller model, fewer"
                " records, or fewer candidate labels",
            )

    def check_peer(self, peer: "HelperIdentity") -> None:
        """Refuse a task whose other helper is not one of `peers`. Called whenever `check` is.

        Raises:
            JobRefused(TASK_REFUSED): naming the setting and the fingerprint.
        """
        if self.peers and peer.fingerprint not in self.peers:
            _refuse(
                f"the other helper's fingerprint {peer.fingerprint} is not allowed: this helper "
                "was not started with it as a --peer"
            )


def _format_seconds(seconds: float) -> str:
    """Return a number of seconds with two digits at least."""
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"


def _refuse(message: str) -> None:
    raise JobRefused(JobReason.TASK_REFUSED, message)
