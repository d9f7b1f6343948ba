import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskedlark.reports.updates import split_update, update_info

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "updates" / "vectors.json").read_text()
)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: str(case["update"]))
def test_shares_and_bindings_are_those_of_the_golden_vectors(case: dict[str, Any]) -> None:
    nonce, seed = bytes(range(16)), bytes.fromhex(case["seed"])
    drawn = iter((nonce, seed))
    parts = split_update(
        np.array(case["update"], np.int64),
        task_id=bytes.fromhex(case["task_id"]),
        report_id=bytes.fromhex(case["report_id"]),
        randomness=lambda count: next(drawn)[:count],
    )
    assert parts.share_0 == b"\x01" + nonce + seed
    assert parts.share_1 == b"\x01" + nonce + bytes.fromhex(case["share_1"])
    for role in (0, 1):
        info = update_info(
            task_id=bytes.fromhex(case["task_id"]),
            round_id=bytes.fromhex(case["round_id"]),
            report_id=bytes.fromhex(case["report_id"]),
            time_bucket=VECTORS["time_bucket"],
            role=role,
            key_id=VECTORS["key_id"],
        )
        assert info.hex() == case["info"][role]
