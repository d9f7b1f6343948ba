"""What some work at a helper will take, estimated from counts before it begins."""

from maskedlark.frozen import frozen


@frozen
class WorkEstimate:
    """An estimate of some work.

    Attributes:
        seconds: Of one core.
        num_bytes: Of memory, at once.
    """

    seconds: float
    num_bytes: int
