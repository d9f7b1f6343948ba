"""Steps 2 and 3 of federated training.

From one clipped update to two input shares, and what a helper reads of them.

    vector = strategy.device_vectors(...)[0]                                      # maskedlark.federated; or
    form.zeros(): cover
    form.check_vector(clip, vector)
    plaintexts = split_update(vector, task_id=..., report_id=..., randomness=...)
    read = form.decode_share(role, plaintexts[role], round_id)                    # at the helper of that role

An update is one person's answer to one round: the difference that local training made, clipped, weighted and
rounded to integers. The share of role 0 is a seed of 32 bytes, from which the helper expands a uniform
vector; the share of role 1 is the vector minus that. A device that is not drawn sends a share of zeros
(*cover*), which no other party can distinguish from an update.

    the coordinates of an update: the parameters | the weight, if released | +c or -c of the clip, if counted

Source: DP-FedAvg (McMahan et al. 2018) for weights and clipping, Andrew et al. 2021 for the clip's
coordinate.
"""

from typing import Annotated, Final, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field

from maskedlark.canonical import canonical
from maskedlark.errors import InvalidTask, ReportReason, ReportRejected
from maskedlark.numbers.field import (
    FieldVector,
    SignedVector,
    from_limbs,
    from_signed,
    is_canonical,
    subtract,
    to_bytes,
)
from maskedlark.numbers.lengths import root_up
from maskedlark.privacy.clip import Clip
from maskedlark.randomness import Randomness
from maskedlark.reports.share_seed import SEED_BYTES, Expander, expand_share

MAX_PARAMETERS: Final = 130_000
"""The most parameters of one update: a sealed share of them fits into one message of the intake."""
UPDATE_VERSION: Final = 1
NONCE_BYTES: Final = 16
ROUND_ID_BYTES: Final = 32
SEED_ROLE: Final = 0
"""The helper whose share is a seed."""
_HEADER_BYTES: Final = 1 + NONCE_BYTES
_LOW: Final = np.uint64(2**32 - 1)
_32: Final = np.uint64(32)

UpdateVector: TypeAlias = SignedVector
"""One update in units of 2^-frac_bits: int64 (form.length,)."""


@canonical
class UpdateForm:
    """What the update reports of a task hold.

    Attributes:
        num_parameters: The length of the model that devices train.
        has_weight: Whether each update carries its weight as one more coordinate, so that their sum is
            released too.
        has_clip_count: Whether each update carries one more coordinate that tells whether it was within the
            clip bound.
        cover: Of the devices that are not drawn, the share that sends zeros instead: 1 for all, 0 for none.
    """

    num_parameters: Annotated[int, Field(ge=1, le=MAX_PARAMETERS)]
    has_weight: bool = False
    has_clip_count: bool = False
    cover: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0

    @property
    def length(self) -> int:
        """The coordinates of an update, and of a round's answer."""
        return self.num_parameters + self.has_weight + self.has_clip_count

    def share_length(self, role: int) -> int:
        """Return the length of an input share's plaintext for one helper, in bytes."""
        return _HEADER_BYTES + self.payload_bytes(role)

    def payload_bytes(self, role: int) -> int:
        """Return how many bytes of it are the share itself."""
        return SEED_BYTES if role == SEED_ROLE else 8 * self.length

    def figure_units(self, clip: Clip) -> int:
        """Return the magnitude of a weight of 1, and of the clip's coordinate.

        An eighth of the bound, as in adaptive clipping.
        """
        return clip.sensitivity >> 3

    def released_sensitivity(self, clip: Clip) -> int:
        """Return the most that one update moves a sum, in L2, in units, rounded up.

        It counts the parameters and the other coordinates.
        """
        figures = self.has_weight + self.has_clip_count
        return root_up(clip.sensitivity**2 + figures * self.figure_units(clip) ** 2)

    def check_vector(self, clip: Clip, vector: UpdateVector) -> None:
        """Refuse an update that a device must not send. Called by the device before it seals.

        Guarantees: what passes moves a sum by at most `released_sensitivity(clip)`, in integers, exactly.

        Raises:
            InvalidTask: another length, a norm beyond the bound, or a weight or clip coordinate out of its
                range; nothing is sent.
        """
        if vector.shape != (self.length,) or vector.dtype != np.int64:
            raise InvalidTask(
                f"an update of this task is {self.length} integers; this one has the shape {vector.shape} "
                f"and the type {vector.dtype}"
            )
        if _exact_square(vector[: self.num_parameters]) > clip.sensitivity**2:
            raise InvalidTask(
                "the norm of an update is beyond the clip bound: clip it, and round toward zero"
            )
        units = self.figure_units(clip)
        if self.has_weight and not 0 <= vector[self.num_parameters] <= units:
            raise InvalidTask("the weight of an update is not in [0, 1]")
        if self.has_clip_count and abs(int(vector[-1])) not in (0, units):
            raise InvalidTask("the clip coordinate of an update is not its unit, with either sign, or 0")

    def zeros(self) -> UpdateVector:
        """Build cover: what a device sends that is not drawn, or has nothing to say.

        Zeros in every coordinate, weight and clip count included.
        """
        return np.zeros(self.length, np.int64)

    def decode_share(self, role: int, plaintext: bytes, round_id: bytes) -> "_ReadUpdate":
        """Parse and check one plaintext. Called by the helper.

        Raises:
            ReportRejected(WRONG_LENGTH, WRONG_VERSION, MASK_NOT_CANONICAL)
        """
        if len(plaintext) != self.share_length(role):
            raise ReportRejected(
                ReportReason.WRONG_LENGTH,
                f"an update share of this task for helper {role} has {self.share_length(role)} bytes, not "
                f"{len(plaintext)}",
            )
        if plaintext[0] != UPDATE_VERSION:
            raise ReportRejected(
                ReportReason.WRONG_VERSION,
                f"an update share has the version {UPDATE_VERSION}, not {plaintext[0]}",
            )
        payload = plaintext[_HEADER_BYTES:]
        if role != SEED_ROLE and not is_canonical(_elements(payload)):
            raise ReportRejected(
                ReportReason.MASK_NOT_CANONICAL, "an element of an update share is not below the modulus"
            )
        # The round is part of the view: at another round the same bytes have another tag.
        return _ReadUpdate(plaintext[:_HEADER_BYTES] + round_id, payload)


class _SplitUpdate(NamedTuple):
    """The two plaintexts of one update report, by helper role."""

    share_0: bytes
    share_1: bytes


def split_update(
    vector: UpdateVector, *, task_id: bytes, report_id: bytes, randomness: Randomness
) -> _SplitUpdate:
    """Split an update into a seed for helper 0 and a vector for helper 1. Called by the device.

    Guarantees: each plaintext alone is independent of the update: the seed exactly, the vector as long as the
    expansion of a secret seed is pseudorandom. `randomness` must be fresh for each sealing: a seed that is
    used twice shows helper 1 a difference of updates.
    """
    header = bytes([UPDATE_VERSION]) + randomness(NONCE_BYTES)
    seed = randomness(SEED_BYTES)
    expanded = expand_share(seed, task_id, report_id, SEED_ROLE, len(vector))
    return _SplitUpdate(header + seed, header + to_bytes(subtract(from_signed(vector), expanded)))


class _ReadUpdate(NamedTuple):
    """What a helper reads of one plaintext.

    Attributes:
        view: What both helpers read alike: its tag shows the ad server that they read the same report of
            the same round.
        payload: The share itself: a seed, or 8 bytes a coordinate.
    """

    view: bytes
    payload: bytes


def update_info(
    *, task_id: bytes, round_id: bytes, report_id: bytes, time_bucket: int, role: int, key_id: int
) -> bytes:
    """Build the HPKE `info` that binds an update share. Used by both the device and the helper."""
    tail = time_bucket.to_bytes(8, "little") + bytes((role, key_id))
    return b"maskedlark/v1 update share\0" + task_id + round_id + report_id + tail


class UpdateSum:
    """The sum of one helper's shares, one at a time: memory for one vector, however many there are.

    Called by a helper.
    """

    def __init__(self, *, form: UpdateForm, role: int, task_id: bytes) -> None:
        self._role = role
        self._expander = Expander(task_id=task_id, role=SEED_ROLE, length=form.length)
        self._low = np.zeros(form.length, np.uint64)
        self._high = np.zeros(form.length, np.uint64)
        self._part = np.empty(form.length, np.uint64)

    def add(self, report_id: bytes, payload: bytes) -> None:
        """Add one share: expand it, if it is a seed. At most 2^31 shares are added."""
        share = self._expander.expand(payload, report_id) if self._role == SEED_ROLE else _elements(payload)
        # Halves of 32 bits add up without a carry, and into arrays that are kept: nothing is allocated per
        # share.
        np.bitwise_and(share, _LOW, out=self._part)
        self._low += self._part
        np.right_shift(share, _32, out=self._part)
        self._high += self._part

    def total(self) -> FieldVector:
        """Return the sum so far, in the field."""
        return from_limbs(self._low, self._high)


def _exact_square(whole: SignedVector) -> int:
    """Return the exact square of the L2 norm: limbs of 17 bits have products and sums that fit int64."""
    magnitudes = np.abs(whole).view(np.uint64)  # also of -2^63, whose magnitude int64 lacks
    limbs = [
        ((magnitudes >> np.uint64(shift)) & np.uint64(0x1FFFF)).view(np.int64) for shift in (0, 17, 34, 51)
    ]
    return sum(
        int(left @ right) << 17 * (i + j) for i, left in enumerate(limbs) for j, right in enumerate(limbs)
    )


def _elements(payload: bytes) -> FieldVector:
    return np.frombuffer(payload, "<u8").astype(np.uint64, copy=False)
