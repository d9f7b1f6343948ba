"""A model names the panels that it was trained on."""

from dataclasses import replace

import numpy as np
import pytest

from adserver.training.eval_set import EvalSet
from adserver.training.inference import predict
from adserver.training.model_file import prepare_model
from adserver.training.panel_note import (
    PANELS_ARE,
    digest_panel,
    is_noted_trained,
    note_panel,
    was_trained_on,
)
from adserver.training.pipeline import INPUT_IS, LOSS_IS, SCALED, describe, notes_of
from maskedlark.model.dense import dense_network

PANEL = EvalSet(
    features=np.arange(24, dtype=np.uint8).reshape(6, 4), labels=np.array([0, 1, 0, 1, 1, 0], np.int64)
)
MODEL = dense_network([4, 1], "relu", seed=1)


def test_a_note_changes_no_output_and_keeps_other_notes() -> None:
    noted = note_panel(describe(MODEL, **{INPUT_IS: SCALED}), PANEL)
    assert notes_of(noted) == {INPUT_IS: SCALED, PANELS_ARE: digest_panel(PANEL)}
    np.testing.assert_array_equal(predict(noted, PANEL.features), predict(MODEL, PANEL.features))


def test_a_model_of_two_panels_names_both_once() -> None:
    other = PANEL.take(np.array([0, 1, 2]))
    noted = note_panel(note_panel(note_panel(MODEL, PANEL), other), PANEL)
    assert notes_of(noted)[PANELS_ARE].split() == [digest_panel(PANEL), digest_panel(other)]
    assert was_trained_on(noted, PANEL)
    assert was_trained_on(noted, other)


@pytest.mark.parametrize(
    "other",
    [
        PANEL.take(np.array([0, 1, 2, 3, 4])),
        PANEL.take(np.array([1, 0, 2, 3, 4, 5])),
        replace(PANEL, labels=1 - PANEL.labels),
        replace(PANEL, features=PANEL.features[:, ::-1]),
    ],
)
def test_a_part_another_order_and_other_values_are_other_panels(other: EvalSet) -> None:
    assert not was_trained_on(note_panel(MODEL, PANEL), other)


def test_the_same_records_of_another_file_are_the_same_panel() -> None:
    same = EvalSet(
        features=np.asfortranarray(PANEL.features), labels=PANEL.labels.astype(np.uint8), encoder=bytes(32)
    )
    assert was_trained_on(note_panel(MODEL, PANEL), same)


def test_a_model_without_a_note_was_trained_on_no_panel() -> None:
    assert not was_trained_on(MODEL, PANEL)
    assert not was_trained_on(describe(MODEL, **{PANELS_ARE: "not a digest"}), PANEL)


def test_notes_say_that_a_panel_or_a_job_trained_a_model() -> None:
    assert is_noted_trained(note_panel(MODEL, PANEL))
    assert is_noted_trained(describe(MODEL, **{LOSS_IS: "mse"}))
    assert not is_noted_trained(describe(MODEL, **{INPUT_IS: SCALED}))


def test_helpers_get_no_digest_by_which_they_could_confirm_a_guess_of_the_panel() -> None:
    noted = note_panel(describe(MODEL, **{INPUT_IS: SCALED}), PANEL)
    sent = prepare_model(noted, num_features=4, encoder=None).file
    assert notes_of(sent) == {INPUT_IS: SCALED}
    assert digest_panel(PANEL).encode() not in sent
