"""What a helper tells the ad server of a job that it has accepted."""

from maskedlark.frozen import frozen


@frozen
class StartedJob:
    """A job that a helper will run; the fields of `StartJobReply` in protos/helper.proto.

    Attributes:
        path: The gradient engine that it will use: exact or general.
        reason: Why not the exact one, or empty.
        numerics_digest: 32 bytes; helpers with different ones cannot work together.
        num_parameters: The length of each round's answer.
        epsilon_spent: What the dataset's budget against the ad server holds: what is charged, and what open
            jobs, this one included, have reserved.
        collusion_epsilon_spent: The same, against the ad server together with one helper.
        rounds_answered: Of this job, before now.
    """

    path: str
    reason: str
    numerics_digest: bytes
    num_parameters: int
    epsilon_spent: float
    collusion_epsilon_spent: float
    rounds_answered: int
