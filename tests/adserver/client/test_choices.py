"""A misspelled parameter is answered with the one that was meant."""

import logging
import traceback
from inspect import signature
from typing import Any

import pytest

from adserver.client import Client
from adserver.client.choices import suggest_names
from maskedlark.errors import InvalidTask


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        (
            "create_task",
            {"min_batchsize": 10},
            r"create_task\(\) has no parameter 'min_batchsize': did you mean min_",
        ),
        ("train", {"lr": 0.1}, r"train\(\) has no parameter 'lr': did you mean learning_rate\?"),
        ("train", {"epsilons": 1}, r"'epsilons': did you mean epsilon\?"),
        (
            "train",
            {"pos_weight": 5.0, "loss": "mse"},
            r"'pos_weight': weigh the classes by loss=\[\{.targets.: \[0, 1\], .weights.: \[1, 5\]\}\],",
        ),
        ("plan", {"class_weight": "balanced"}, r"'class_weight': weigh the classes by loss="),
        ("plan", {"batchsize": 1}, r"'batchsize': did you mean batch_size\?"),
        ("aggregate", {"groupby": "day"}, r"'groupby': did you mean group_by\?"),
        ("evaluate", {"weight": "best"}, r"'weight': did you mean weights\?"),
        ("train", {"epochs": 3}, r"'epochs': did you mean rounds\?"),
        ("train", {"panel": "panel.npz"}, r"'panel': did you mean eval_set\?"),
        ("train", {"eval_data": "panel.npz"}, r"'eval_data': did you mean eval_set\?"),
        ("train", {"eps": 3}, r"'eps': did you mean epsilon\?"),
        ("train", {"zzz": 3}, r"'zzz': it takes loss, learning_rate, rounds, epsilon, .*, progress$"),
        ("train", {"model": b""}, r"train\(\) needs loss: give one of .*mse"),
    ],
)
def test_a_misspelled_parameter_is_answered_with_the_one_that_was_meant(
    method: str, given: dict[str, Any], said: str
) -> None:
    client = object.__new__(Client)  # refused before anything is read of it
    with pytest.raises(TypeError, match=said):
        getattr(client, method)(**given)


def test_what_nobody_meant_is_answered_with_all_names_and_what_is_meant_for_more_is_the_functions_own() -> (
    None
):
    @suggest_names
    def made(*, name: str, days: float = 1.0, **more: object) -> object:
        return more

    @suggest_names
    def plain(*, name: str = "") -> str:
        return name

    assert made(name="a", day=3) == {"day": 3}
    misspelled = {"zzz": "1"}
    with pytest.raises(TypeError, match=r"plain\(\) has no parameter 'zzz': it takes name$"):
        plain(**misspelled)
    assert list(signature(Client.train).parameters)[:3] == ["self", "model", "loss"]


def test_an_error_that_says_what_is_wrong_comes_without_what_it_came_through(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def deep() -> None:
        try:
            raise OSError("of a library")
        except OSError as error:
            raise InvalidTask("epsilon is 12, but the helpers allow 3") from error

    @suggest_names
    def made() -> None:
        deep()

    with caplog.at_level(logging.DEBUG), pytest.raises(InvalidTask, match="allow 3") as raised:
        made()
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][1:] == ["called"]
    shown = "".join(traceback.format_exception(raised.value))
    assert "of a library" not in shown
    assert "of a library" in caplog.text
