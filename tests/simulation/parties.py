"""Who takes part: two helpers with keys of the seed, and two tasks of theirs, one without noise and one with
a small budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from helper.trust.floors import Floors
from helper.trust.key_ring import Ring
from helper.trust.keys import HelperKeys
from maskedlark import canonical
from maskedlark.federated.dense import DenseModel
from maskedlark.randomness import derive_key, seeded
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.reports.task import Task, TaskBundle
from maskedlark.reports.updates import UpdateForm
from tests.builders import NOW, examples, settings

HELPERS: Final = ("north", "south")
WORKERS: Final = ("worker a", "worker b")
CROWD_MODEL: Final = DenseModel(widths=(4, 2))
"""What devices train."""
PLACES: Final = ("lima", "oslo", "pune")
MOST_SPENT: Final = 200
FLOORS: Final = Floors(
    min_batch_size=2, max_epsilon=16.0, max_collusion_epsilon=1000.0, is_noise_optional=True
)
SUITE: Final = HpkeSuite.X25519_AES128GCM

_SHOP: Final = {
    "min_cell_count": 2,
    "values": ({"name": "amount", "low": 0, "high": MOST_SPENT},),
    "keys": ({"name": "place", "size": len(PLACES), "categories": PLACES},),
}
_EXACT: Final = {"name": "exact", "mechanism": "none", "norm": "l2", "measurement": _SHOP}
_NOISY: Final = {
    "name": "noisy",
    "mechanism": "gaussian",
    "norm": "l2",
    "measurement": _SHOP,
    "epsilon": 2.0,
    "salt": bytes(range(1, 17)),
}

_EXACT_UPDATES: Final = {
    "name": "exact updates",
    "unit": "user",
    "updates": UpdateForm(num_parameters=CROWD_MODEL.size),
    "frac_bits": 24,
}
_NOISY_UPDATES: Final = {
    **_EXACT_UPDATES,
    "name": "noisy updates",
    "mechanism": "gaussian",
    "epsilon": 16.0,
    "salt": bytes(range(2, 18)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundles:
    """The tasks as both helpers signed them.

    Attributes:
        exact: Without noise: what comes out is compared with what should, to the bit.
        noisy: With noise, and a budget that a few jobs and queries exhaust.
    """

    exact: TaskBundle
    noisy: TaskBundle

    @property
    def all(self) -> tuple[TaskBundle, TaskBundle]:
        """Both."""
        return (self.exact, self.noisy)


def helper_keys(seed: int, name: str) -> HelperKeys:
    """Long-term keys of the seed: samples and blinds hang on them.

    What browsers seal with may be anything.
    """
    secret = derive_key(seed.to_bytes(16, "little"), b"simulation", name.encode())
    return HelperKeys(
        name=name,
        signing=Ed25519PrivateKey.from_private_bytes(derive_key(secret, b"simulation", b"signing")),
        agreement=X25519PrivateKey.from_private_bytes(derive_key(secret, b"simulation", b"agreement")),
        storage_key=derive_key(secret, b"simulation", b"storage"),
        ring=Ring.first(SUITE),
    )


def bundles(keys: Mapping[str, HelperKeys]) -> Bundles:
    """Both tasks, signed."""
    return Bundles(exact=_signed(_EXACT, keys), noisy=_signed(_NOISY, keys))


def crowd_bundles(keys: Mapping[str, HelperKeys]) -> Bundles:
    """Both tasks of updates, signed: whose devices train."""
    return Bundles(exact=_signed(_EXACT_UPDATES, keys), noisy=_signed(_NOISY_UPDATES, keys))


def people(task: Task, count: int, seed: int) -> list[Example]:
    """What so many browsers know."""
    known, stream = [], seeded(seed, f"purses of {task.name}")
    for example in examples(task, count, seeded(seed, f"people of {task.name}")):
        place, amount = stream(1)[0] % len(PLACES), stream(1)[0] % (MOST_SPENT + 1)
        known.append(
            Example(
                features=example.features,
                label=example.label,
                measured=MeasuredValues(keys=(place,), values=(amount,)),
            )
        )
    return known


def _signed(changes: Mapping[str, Any], keys: Mapping[str, HelperKeys]) -> TaskBundle:
    first, second = (keys[name] for name in HELPERS)
    task = canonical.build(Task, settings(helpers=(first.identity, second.identity), **changes))
    signatures = (first.sign_task(task), second.sign_task(task))
    return TaskBundle(task=task, signatures=signatures, key_lists=(first.key_list(NOW), second.key_list(NOW)))
