"""`--loss` and `--heads`: what a job minimises."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from maskedlark.model.losses import Loss

if TYPE_CHECKING:
    from maskedlark.model.heads import Heads


def read_loss(loss: Loss | None, heads: Path | None, model: bytes | None = None) -> "str | Heads | None":
    """Return the loss, or the heads of a .json file; None if neither is given.

    A head that names no output reads the only one of the model.

    Raises:
        typer.BadParameter: both are given, or the file is not a JSON list of heads.
        InvalidTask: a head is not valid.
    """
    if heads is None:
        return loss
    if loss is not None:
        raise typer.BadParameter("expected only one of --loss and --heads")
    # Numpy and onnx come with them, which `--help` and jobs of one loss do without
    from adserver.training.pipeline import names_of_outputs
    from maskedlark.model.heads import Heads

    try:
        listed = json.loads(heads.read_text())
    except ValueError as error:
        raise typer.BadParameter(f"--heads: {heads.name} is not JSON: {error}") from None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise typer.BadParameter(
            f"--heads: {heads.name} must be a list of heads, each with targets and, unless the model has one "
            "output, an output"
        )
    return Heads.of(listed, () if model is None else names_of_outputs(model))
