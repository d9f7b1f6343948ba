"""What `adserver job submit --strategy` and `adserver task create --updates` read, and what they store."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from adserver.cli.options import FreezeOption, TaskOption, TrainOption
from maskedlark.errors import InvalidTask
from maskedlark.federated.kinds import STRATEGY_KINDS
from maskedlark.terminal.options import panel

if TYPE_CHECKING:
    from adserver.records.submissions import FederatedSubmission

federated = panel("Federated")

StrategyOption = Annotated[
    str | None,
    federated(
        f"Train on devices with this strategy, in a task of updates: one of {', '.join(STRATEGY_KINDS)}."
    ),
]
SettingsOption = Annotated[
    Path | None,
    federated(
        "JSON file with the strategy's settings; see reference/strategies.md.", exists=True, dir_okay=False
    ),
]
LayersOption = Annotated[
    str,
    federated(
        "Layer widths of a dense model, for example 784,10; or give --model, which devices with torch "
        "can train."
    ),
]


def settings_in(path: Path | None) -> dict[str, Any]:
    """Read the JSON object in a file; empty without a file.

    Raises:
        InvalidTask: the file is no JSON object.
    """
    try:
        settings = {} if path is None else json.loads(path.read_bytes())
    # RecursionError: of JSON that is nested too deeply
    except (OSError, ValueError, RecursionError):
        raise InvalidTask(f"{path} is not valid: expected JSON in UTF-8") from None
    if not isinstance(settings, dict):
        raise InvalidTask(f"{path} is not valid: expected a JSON object with settings")
    return settings


def _read_settings(
    path: Path | None, *, rounds: int | None, noise_multiplier: float | None
) -> Mapping[str, Any]:
    """Combine a strategy's settings from a JSON file and the options that name one.

    Raises:
        InvalidTask: the file is no JSON object.
    """
    # What is typed wins over the file; what is not typed leaves the file's setting
    given = {"rounds": rounds, "noise_multiplier": noise_multiplier}
    return settings_in(path) | {name: value for name, value in given.items() if value is not None}


def _read_widths(typed: str) -> tuple[int, ...]:
    """Parse the widths of a dense model, such as 784,10.

    Raises:
        InvalidTask: not at least two numbers.
    """
    parts = typed.split(",")
    if len(parts) < 2 or not all(part.strip().isdecimal() for part in parts):
        raise InvalidTask(
            f"--layers is {typed!r}: expected at least two widths separated by commas, for example 784,10"
        )
    return tuple(int(part) for part in parts)


def read_federated_options(
    *,
    model: Path | None,
    strategy: StrategyOption = None,
    settings: SettingsOption = None,
    layers: LayersOption = "",
    window: Annotated[float, federated("Seconds that devices have to answer a round.", min=0.0)] = 60.0,
    least_devices: Annotated[
        int | None,
        federated(
            "Keep a round open until this many devices have answered; default: the task's min_batch_size.",
            min=1,
        ),
    ] = None,
    model_seed: Annotated[int, federated("Seed for the model's first weights.", min=0)] = 0,
    no_helpers: Annotated[
        bool,
        federated(
            "No helper takes part: each device noises its own updates (line, draw-and-discard), and the "
            "settings have the noise.",
            "--no-helpers",
        ),
    ] = False,
    spam_test: Annotated[
        bool,
        federated(
            "draw-and-discard: reject models that are too far from the instances; for jobs with much noise.",
            "--spam-test",
        ),
    ] = False,
    updates_each: Annotated[
        int, federated("With --no-helpers: the number of updates that a person sends.", min=1)
    ] = 1,
    rounds: int | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    eval_set: Path | None = None,
    eval_every: int | None = None,
    train: TrainOption = None,
    freeze: FreezeOption = None,
    task: TaskOption = "",
) -> "FederatedSubmission | None":
    """Return the federated job that the options describe; None without --strategy.

    Raises:
        InvalidTask: the options do not describe one.
    """
    if strategy is None and not no_helpers and not spam_test:
        return None
    if strategy is None or (spam_test and not no_helpers):
        raise InvalidTask(
            "--no-helpers requires --strategy line or draw-and-discard; --spam-test requires both"
        )
    # Refused and not ignored: a device would train, clip and noise more than was asked for
    if train or freeze:
        raise InvalidTask(
            "--train and --freeze choose among the parameters of a job over a dataset; devices train all "
            "of a model: leave both out"
        )
    # Only now: most commands that show these options submit no such job
    from adserver.records.submissions import FederatedSubmission
    from adserver.training.model_file import read_model

    return FederatedSubmission(
        kind=strategy,
        settings=_read_settings(settings, rounds=rounds, noise_multiplier=noise_multiplier),
        widths=_read_widths(layers) if layers else (),
        model=read_model(model) if model else None,
        epsilon=epsilon,
        window_s=window,
        least_devices=least_devices,
        seed=model_seed,
        eval_set=eval_set.read_bytes() if eval_set else None,
        eval_every=eval_every,
        task=task,
        is_without_helpers=no_helpers,
        is_tested=spam_test,
        updates_each=updates_each,
    )
