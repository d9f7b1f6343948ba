"""Federated jobs without helpers: each device adds noise to its update before anything leaves it.

    job = local_job(job_id, settings, widths)        # ad server; settings: `Line` or `DrawAndDiscard`
    read = read_local_job(job)                       # device: settings and model, checked
    body = LocalUpdate(update_id=..., position=..., vector=...).encode()                    # device
    update = LocalUpdate.decode(body, length)        # ad server

No party is trusted, so the device decides what it accepts: `check_epsilon` compares a job with the largest
epsilon that its owner allows.

    line              a round takes the first `devices` updates that come; position is the round's index
    draw-and-discard  no rounds; position is how many updates had been accepted when the instance was drawn
"""

import math
import struct
from dataclasses import field
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np

from maskedlark.canonical import build, decode, digest, encode
from maskedlark.errors import InvalidTask, ReportReason, ReportRejected
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.generalised_linear import Multinomial
from maskedlark.federated.local_description import LocalJob
from maskedlark.federated.strategies.line import Line
from maskedlark.frozen import frozen
from maskedlark.numbers.field import SignedVector

LocalSettings: TypeAlias = Line | DrawAndDiscard
MAX_PARAMETERS: Final = 130_000
_HEADER: Final = struct.Struct("<16sq")
_LARGEST_SUM: Final = 1 << 62  # a round is summed in int64
_DIGEST_BYTES: Final = 16


class LocalRead(NamedTuple):
    """What a job says.

    Attributes:
        settings: Of the strategy.
        model: A dense network (line) or a softmax regression (draw and discard).
    """

    settings: LocalSettings
    model: DenseModel | Multinomial


def local_job(job_id: bytes, settings: LocalSettings, widths: tuple[int, ...]) -> LocalJob:
    """Build a job of a strategy. Called by the ad server.

    Raises:
        InvalidTask: a setting does not go with a job without helpers.
    """
    written = encode(settings).decode("ascii")
    job = build(LocalJob, {"job_id": job_id, "kind": settings.kind, "settings": written, "widths": widths})
    # Read back at once: what does not pass here would be refused by every device.
    read_local_job(job)
    return job


def read_local_job(job: LocalJob) -> LocalRead:
    """Read the settings and the model of a job. Called by the device, and by the ad server.

    Raises:
        InvalidTask: not canonical, or a setting does not go with a job without helpers.
        InvalidModel: no such model.
    """
    # What is not ASCII becomes a question mark, which is not canonical and so refused.
    written = job.settings.encode("ascii", "replace")
    if job.kind == "line":
        line, model = decode(Line, written), DenseModel(widths=job.widths)
        _check_line(line, model)
        return LocalRead(line, model)
    draws = decode(DrawAndDiscard, written)
    if len(job.widths) != 2:
        raise InvalidTask("draw and discard trains a regression: two widths, features and classes")
    regression = Multinomial(features=job.widths[0], classes=job.widths[1])
    if regression.size > MAX_PARAMETERS:
        raise InvalidTask(f"the model has {regression.size} weights, and at most {MAX_PARAMETERS} are sent")
    return LocalRead(draws, regression)


def _check_line(line: Line, model: DenseModel) -> None:
    if line.sampling_rate != 1.0:
        raise InvalidTask("sampling_rate is 1 without helpers: an upload shows who was drawn")
    if line.bound.extra_coordinates:
        raise InvalidTask("a weight or clip count is for helpers' sums: leave is_weight_summed and quantile")
    if model.size > MAX_PARAMETERS:
        raise InvalidTask(f"the model has {model.size} weights, and at most {MAX_PARAMETERS} are sent")
    if line.devices * line.largest_value(model.size) >= _LARGEST_SUM:
        raise InvalidTask("a round's sum could pass 62 bits: use fewer devices a round, or fewer frac_bits")


class LocalCost(NamedTuple):
    """What one update of a job costs, against everybody.

    Attributes:
        epsilon: For the unit; infinite without noise.
        delta: 0 of draw and discard.
        unit: Whose: an event's (one batch of logs), a coordinate's, or a whole model's.
        whole_update: The epsilon of the whole update.
    """

    epsilon: float
    delta: float
    unit: str
    whole_update: float


def cost_of(job: LocalJob) -> LocalCost:
    """Return what one update costs. Called by the device, and by the ad server to show it."""
    settings, model = read_local_job(job)
    if isinstance(settings, Line):
        return LocalCost(settings.epsilon, settings.delta, "event", settings.epsilon)
    epsilon = math.inf if settings.epsilon is None else settings.epsilon
    return LocalCost(epsilon, 0.0, settings.unit.value, settings.model_epsilon(model.size))


def check_epsilon(job: LocalJob, most: float) -> None:
    """Refuse a job whose whole update costs more than a device's owner allows. Called by the device.

    Raises:
        InvalidTask: it costs more, or adds no noise.
    """
    cost = cost_of(job)
    if cost.whole_update > most:
        raise InvalidTask(
            f"an update of this job has epsilon {cost.whole_update:g}, and this device allows {most:g}"
        )


@frozen(eq=False)
class LocalUpdate:
    """What a device sends: noised already.

    Attributes:
        update_id: 16 bytes that the device chose: they tell its update from an equal one of another device.
        position: The round's index, or how many updates were accepted before the draw.
        vector: The noised update, or the device's whole model, in units of the grid.
    """

    update_id: bytes
    position: int
    vector: SignedVector = field(repr=False)

    @staticmethod
    def num_bytes(length: int) -> int:
        """Return the length in bytes of an update of so many values."""
        return _HEADER.size + 8 * length

    @property
    def digest(self) -> bytes:
        """Return 16 bytes under which the ad server takes this update once, however often it is sent."""
        return digest("local update", self.encode())[:_DIGEST_BYTES]

    def encode(self) -> bytes:
        """Encode id, position, then 8 bytes a value, little-endian."""
        return _HEADER.pack(self.update_id, self.position) + self.vector.astype("<i8", copy=False).tobytes()

    @classmethod
    def decode(cls, body: bytes, length: int) -> Self:
        """Parse an update. Called by the ad server.

        Raises:
            ReportRejected(WRONG_LENGTH): another number of values than the job's model has.
            ReportRejected(MALFORMED): a negative position.
        """
        if len(body) != cls.num_bytes(length):
            raise ReportRejected(
                ReportReason.WRONG_LENGTH,
                f"an update of this job has {cls.num_bytes(length)} bytes, not {len(body)}",
            )
        update_id, position = _HEADER.unpack_from(body)
        if position < 0:
            raise ReportRejected(ReportReason.MALFORMED, "a position is not negative")
        return cls(
            update_id=update_id, position=position, vector=np.frombuffer(body, "<i8", offset=_HEADER.size)
        )
