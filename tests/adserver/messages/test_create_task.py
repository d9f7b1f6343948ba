"""A task's settings come back from their JSON as they were sent; what was not sent is not made up."""

import math
from typing import Any

import pytest

from adserver.collecting.task_settings import label_space, measurement_of_settings
from adserver.messages.task import CreateTask
from maskedlark.canonical import encode
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import InvalidTask
from maskedlark.privacy.clip import Norm
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.reports.updates import UpdateForm
from tests.measured import SHOP

LEAST: dict[str, Any] = {
    "name": "clicks", "origin": "https://ads.example", "min_batch_size": 2, "clip_norm": 1.0, "epsilon": 2.0,
}  # fmt: skip
LABELS = label_space(classes=None, max_value=9, num_buckets=3, default_label=3)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return fit({"age": ["20", "30", "é"], "y": ["a", "b", "c"]}, FitSettings(label="y"))


def test_settings_come_back_as_they_were_sent(encoder: Encoder) -> None:
    sent = {
        **LEAST, "salt": bytes(range(16)), "labels": LABELS, "num_features": 7, "num_decoys": 3,
        "mechanism": Mechanism.LAPLACE, "norm": Norm.L1, "proof": False, "feature_epsilon": 0.1 + 0.2,
        "starts_at": 600, "expires_at": 1 << 40, "unit": PrivacyUnit.USER, "reports_per_user": 3,
        "updates": UpdateForm(num_parameters=5, cover=1 / 3),
    }  # fmt: skip
    body = CreateTask.of({**sent, "encoder": encoder.digest}, encoder)
    read = CreateTask.model_validate_json(body.model_dump_json(exclude_unset=True)).settings()
    assert read == {**sent, "encoder": encoder}


def test_a_measurement_comes_back_as_it_was_declared() -> None:
    declared = measurement_of_settings(SHOP)
    body = CreateTask.of({**LEAST, "measurement": declared}, None)
    read = CreateTask.model_validate_json(body.model_dump_json()).settings()
    assert encode(measurement_of_settings(read["measurement"])) == encode(declared)


def test_what_is_not_said_is_left_to_the_defaults() -> None:
    assert CreateTask(**LEAST).settings() == LEAST
    assert CreateTask(**LEAST, feature_epsilon=None, encoder=None).settings() == LEAST


@pytest.mark.parametrize(
    ("change", "said"),
    [({"epsilon": math.nan}, "epsilon"), ({"colour": 1}, "colour"), ({"salt": b"short"}, "salt"),
     ({"labels": {"kind": "none"}}, "labels"), ({"origin": 7}, "origin")],
    ids=["nan", "no field", "short salt", "no labels", "no text"],
)  # fmt: skip
def test_what_is_no_setting_is_refused_before_it_is_sent(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidTask, match=said):
        CreateTask.of({**LEAST, **change}, None)
