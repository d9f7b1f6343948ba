"""Which examples each device holds: a labelled set in shards, in equal parts, or by a user key.

    population = Population.by_user(users, least=2)
    population.examples(features, labels, device=7)

A network's devices and a simulation that partition alike train the same model.
"""

from collections.abc import Sequence
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import InvalidTask
from maskedlark.federated.local_training import Examples, shuffle
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness

_User = TypeVar("_User", str, int)


@frozen
class Population:
    """The examples of each device, by their numbers in one set; an example may be on several devices.

    Attributes:
        members: One array of example numbers a device.
    """

    members: tuple[NDArray[np.int64], ...]

    def __len__(self) -> int:
        return len(self.members)

    def examples(self, features: NDArray[np.integer], labels: NDArray[np.integer], device: int) -> Examples:
        """Copy a device's examples out of the set's features and labels."""
        chosen = self.members[device]
        return Examples(features=features[chosen], labels=labels[chosen])

    @classmethod
    def in_shards(
        cls,
        labels: NDArray[np.integer],
        *,
        devices: int,
        shards_each: int,
        shard_size: int,
        randomness: Randomness,
    ) -> Self:
        """Sort by label, cut into shards, and deal some to each device: most devices see two labels only.

        Where there are more devices than shards for them, the shards are dealt again, in a new order.

        Raises:
            InvalidTask: the set does not hold the shards of one device.

        Source: McMahan et al. 2017 and Geyer et al. 2017: MNIST in shards of 300, two a device.
        """
        shards = len(labels) // shard_size if shard_size > 0 else 0
        if devices < 1 or shards_each < 1 or shards < shards_each:
            raise InvalidTask(
                f"{len(labels)} examples do not give {shards_each} shards of {shard_size} to a device: use "
                "smaller shards"
            )
        # Stable: equal labels keep their order, so that every machine deals the same shards.
        order = np.argsort(labels, kind="stable")
        members: list[NDArray[np.int64]] = []
        while len(members) < devices:
            dealt = shuffle(shards, randomness)[: shards // shards_each * shards_each].reshape(
                -1, shards_each
            )
            for hand in dealt[: devices - len(members)]:
                members.append(
                    np.concatenate([order[one * shard_size : (one + 1) * shard_size] for one in hand])
                )
        return cls(members=tuple(members))

    @classmethod
    def in_equal_parts(cls, count: int, *, each: int, randomness: Randomness) -> Self:
        """Deal examples in random order, `each` to a device; a remainder that is too small is left out.

        Raises:
            InvalidTask: fewer examples than one device takes.
        """
        devices = count // each if each > 0 else 0
        if not devices:
            raise InvalidTask(f"{count} examples are too few for {each} a device")
        dealt = shuffle(count, randomness)[: devices * each].reshape(devices, each)
        return cls(members=tuple(dealt))

    @classmethod
    def by_user(cls, users: Sequence[_User], *, least: int = 1) -> Self:
        """Put all examples of a user on one device, users in the order of their names or numbers.

        Args:
            users: Whose each example is.
            least: Users with fewer examples are left out.

        Raises:
            InvalidTask: no user has enough examples.
        """
        held: dict[_User, list[int]] = {}
        for number, user in enumerate(users):
            held.setdefault(user, []).append(number)
        # By name, not by first example: devices have the same numbers however the set was ordered.
        members = tuple(np.array(held[user], np.int64) for user in sorted(held) if len(held[user]) >= least)
        if not members:
            raise InvalidTask(f"no user has {least} examples: lower the least number")
        return cls(members=members)
