"""Every number that stands as a constant in the protocol's rooms, as it was when the vector was written.

All parties compute with them, so a helper with another one refuses, charges or rounds otherwise than its
peer. Whoever changes one on purpose writes the vector again:

    python -m tests.maskedlark.test_protocol_constants
"""

import importlib
import json
import math
import pkgutil
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import Any, Final

import maskedlark.numbers
import maskedlark.privacy
import maskedlark.releases
import maskedlark.reports

_ROOMS: Final = (maskedlark.numbers, maskedlark.privacy, maskedlark.releases, maskedlark.reports)
_VECTOR: Final = Path(__file__).parents[1] / "vectors" / "protocol_constants.json"


def written(value: object) -> Any:
    """A number, or numbers, as JSON holds them to the last bit; None for anything else."""
    if isinstance(value, tuple):
        inner = [written(one) for one in value]
        return None if None in inner or not inner else inner
    match value:
        case bool():
            spelt: Any = None
        case int():
            spelt = value
        case Fraction():
            spelt = str(value)
        case Real():
            spelt = float(value).hex()
        case bytes():
            spelt = f"b:{value.hex()}"
        case _:
            spelt = None
    return spelt


def constants() -> dict[str, Any]:
    found = {}
    for room in _ROOMS:
        for info in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            module = importlib.import_module(info.name)
            for name in vars(module).get("__annotations__", ()):
                if name.strip("_").isupper() and (spelt := written(vars(module).get(name))) is not None:
                    found[f"{info.name}.{name}"] = spelt
    return dict(sorted(found.items()))


def test_no_constant_of_the_protocol_has_another_value() -> None:
    assert constants() == json.loads(_VECTOR.read_text())


def test_numbers_are_written_to_the_last_bit() -> None:
    assert written(0.1) != written(math.nextafter(0.1, 1))
    assert (written((1, 2.0)), written(b"\0"), written("x"), written(True), written(())) == (
        [1, (2.0).hex()],
        "b:00",
        None,
        None,
        None,
    )


if __name__ == "__main__":
    _VECTOR.write_text(json.dumps(constants(), indent=1) + "\n")
