"""Golden vectors of update reports: written from tests/reference.py, which imports nothing of the product.

python -m tests.vectors.updates.generate > tests/vectors/updates/vectors.json
"""

import json
from random import Random
from typing import Any

from tests import reference


def vectors() -> dict[str, Any]:
    """Shares of three updates, good and at the edges, under fixed seeds."""
    cases = []
    random = Random(15)
    for values in ([0, 0, 0], [1, -1, 2**40], [2**62, -(2**62), 7]):
        task_id, round_id, report_id, seed = (random.randbytes(count) for count in (32, 32, 16, 32))
        expanded = reference.field_elements(
            reference.hkdf_expand(seed, b"share", task_id + report_id + b"\x00"), len(values)
        )
        other = [(value - mask) % reference.P for value, mask in zip(values, expanded, strict=True)]
        setting = reference.UpdateSetting(
            task_id=task_id,
            round_id=round_id,
            spec=b"",
            time_bucket=500_000,
            length=len(values),
            min_batch_size=1,
        )
        cases.append(
            {
                "task_id": task_id.hex(),
                "round_id": round_id.hex(),
                "report_id": report_id.hex(),
                "seed": seed.hex(),
                "update": values,
                "share_1": b"".join(one.to_bytes(8, "little") for one in other).hex(),
                "info": [reference.update_binding(setting, report_id, role, 7).hex() for role in (0, 1)],
            }
        )
    return {"time_bucket": 500_000, "key_id": 7, "cases": cases}


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=1))
