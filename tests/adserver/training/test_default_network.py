"""The default network of a rehearsal is the one that quickstart's command writes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.training.default_network import (
    ENCODER_FILE,
    PANEL_FILE,
    DefaultNetwork,
    choose_default,
    find_rarest,
    make_default_network,
    submit_default,
)
from adserver.training.defaults import Network
from adserver.training.eval_set import EvalSet
from maskedlark.canonical import encode
from maskedlark.encoding.encoder import CategoryColumn, Encoder, NumberColumn
from maskedlark.model.losses import Loss
from tests.adserver.training.test_submission import SUBMISSION, task_of

ENCODER = Encoder(
    columns=(
        *(NumberColumn(name=name, first=0, missing=0, edges=(1.0, 2.0)) for name in "abc"),
        CategoryColumn(name="device", first=1, missing=0, categories=("phone", "tv", "watch")),
    )
)
PANEL = EvalSet(
    features=np.random.default_rng(1).integers(0, 4, (60, 4)).astype(np.uint8),
    labels=(np.arange(60) % 20 == 0).astype(np.int64),
)


def test_several_reports_a_person_have_the_rule_of_one_report_at_as_much_noise() -> None:
    def chosen(epsilon: float, **of_people: Any) -> tuple[float, DefaultNetwork]:
        task, loss = task_of(**of_people), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
        panel = replace(PANEL, labels=np.arange(60) % 2)
        made = choose_default(task, ENCODER, panel, reports=9_000, epsilon=epsilon, outputs=1, loss=loss)
        rate, _ = submit_default(SUBMISSION, task, made, reports=9_000, epsilon=epsilon)
        return rate, made

    of_people = {"unit": "user", "reports_per_user": 4}
    assert chosen(4.0, **of_people) == chosen(1.0)
    assert chosen(4.0)[1].network.are_numbers_in_tables > chosen(1.0)[1].network.are_numbers_in_tables


@pytest.mark.parametrize("encoder", [ENCODER, None])
@pytest.mark.parametrize(
    "network",
    [
        Network(hidden=(), are_numbers_in_tables=False),
        Network(hidden=(), are_numbers_in_tables=True),
        Network(hidden=(8,), are_numbers_in_tables=False, is_wide=True),
        Network(hidden=(), are_numbers_in_tables=False, clip_norm=6.0),
    ],
)
def test_its_options_write_the_same_file(network: Network, encoder: Encoder | None, tmp_path: Path) -> None:
    loss = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
    made = make_default_network(network, encoder, PANEL, outputs=1, loss=loss)
    (tmp_path / "encoder.json").write_bytes(encode(ENCODER))
    np.savez(tmp_path / "panel.npz", features=PANEL.features, labels=PANEL.labels)
    files = {ENCODER_FILE: str(tmp_path / "encoder.json"), PANEL_FILE: str(tmp_path / "panel.npz")}
    options = [files.get(one, one) for one in made.options]
    out = tmp_path / "default.onnx"
    result = CliRunner().invoke(app, ["model", "create", str(out), *options])
    assert result.exit_code == 0, result.output
    assert out.read_bytes() == made.model


def test_the_rarer_label_is_half_a_row_away_from_none() -> None:
    assert find_rarest(PANEL) == pytest.approx(3.5 / 61)
    several = EvalSet(features=PANEL.features, labels=np.arange(60) % 3)
    assert find_rarest(several) == 0.5
