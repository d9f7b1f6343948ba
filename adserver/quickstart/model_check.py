"""The model and the loss of a project: which are chosen, and what is wrong with those that it names."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from adserver.quickstart.budget_check import unsigned_task
from adserver.quickstart.helper_floors import FLOORS
from adserver.quickstart.project import Project
from adserver.quickstart.settings import TaskSettings
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidModel, InvalidTask
from maskedlark.model.losses import Loss, check_loss
from maskedlark.terminal.exit_status import how_to_install

if TYPE_CHECKING:
    from adserver.training.model_file import PreparedModel


def choose_loss(project: Project, features: int, classes: int) -> Loss:
    """Return the loss that the settings name, or the usual one for the classes and the model's outputs."""
    from adserver.training.model_file import why_loss_misfits

    settings = project.settings
    usual = usual_loss(classes, is_on_devices=bool(settings.federated.person))
    if settings.training.loss or not settings.model.onnx or usual is Loss.CROSS_ENTROPY:
        return settings.training.loss or usual
    try:
        model = read_own_model(project, features).parsed
    except (OSError, InvalidModel, InvalidTask):
        return usual  # what is wrong with the file has a line of its own
    if model.output_width == classes:
        return Loss.CROSS_ENTROPY
    return Loss.BINARY_CROSS_ENTROPY if why_loss_misfits(model, usual) else usual


def usual_loss(num_classes: int, *, is_on_devices: bool = False) -> Loss:
    """Return the usual loss for so many classes, for a model with linear outputs; devices know one only."""
    is_binary = num_classes == 2 and not is_on_devices
    return Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS if is_binary else Loss.CROSS_ENTROPY


def usual_outputs(num_classes: int, *, is_on_devices: bool = False) -> int:
    """Return the width of the output of a model for the usual loss."""
    return num_classes if usual_loss(num_classes, is_on_devices=is_on_devices) is Loss.CROSS_ENTROPY else 1


def read_own_model(project: Project, features: int, encoder: Encoder | None = None) -> "PreparedModel":
    """Read the model that the settings name.

    Raises:
        OSError, InvalidModel, InvalidTask: it cannot be read, is no model of so many features, or has a
            table with fewer rows than a column of the encoder names.
    """
    from adserver.training.model_file import prepare_model, read_model

    given = read_model(project.path(project.settings.model.onnx))
    return prepare_model(given, num_features=features, encoder=encoder)


def warn_of_own_model(
    own: "PreparedModel", loss: Loss, classes: int, encoder: Encoder | None
) -> Iterator[str]:
    """Yield a line for each kind of column that a model reads as another, and for a loss without chances."""
    # Loads onnxruntime, which light commands do without.
    from adserver.training.column_uses import warn_of_columns
    from adserver.training.model_file import warn_of_loss

    if line := warn_of_loss(own.parsed, loss, classes):
        yield line
    if encoder is not None:
        yield from warn_of_columns(own.file, encoder)


def find_model_problems(
    project: Project, loss: Loss, encoder: Encoder | None, *, features: int, classes: int, reports: int
) -> Iterator[str]:
    """Yield what is wrong with the model, and with the loss for it.

    Args:
        project: The project.
        loss: What is trained.
        encoder: How columns become features; None for the sample.
        features: Bytes of a report.
        classes: Of the label.
        reports: How many rows browsers report, or how many devices train.
    """
    # Load numpy and onnx, which light commands do without.
    from adserver.training.model_file import why_loss_misfits
    from maskedlark.model.dense import dense_network
    from maskedlark.model.exactness import why_general
    from maskedlark.model.onnx_file import parse

    settings = project.settings.model
    where = "[model] onnx" if settings.onnx else "[model] hidden"
    try:
        if settings.onnx:
            model = read_own_model(project, features, encoder).parsed
        else:
            # The encoder of the default network does not exist yet: a dense one has the same outputs.
            outputs = usual_outputs(classes, is_on_devices=bool(project.settings.federated.person))
            encoded = dense_network(
                [features, *(settings.hidden or ()), outputs], "relu", seed=settings.seed, final="linear"
            )
            model = parse(encoded, num_features=features)
    except OSError as error:
        yield f"{where}: cannot read {project.path(settings.onnx)}: {error.strerror}"
        return
    except (InvalidModel, InvalidTask) as error:
        yield f"{where}: {error} (reports have {features} features)"
        return
    try:
        check_loss(model, loss, classes)
    except InvalidModel as error:
        yield f"[training] loss: {error}"
        return
    if why := why_loss_misfits(model, loss):
        yield f"[training] loss: {why}"
    # Devices train any model themselves; helpers only add up their updates.
    if project.settings.federated.person:
        # The size of updates follows from nothing else in `[task]`, whose problems have lines of their own
        try:
            updates = unsigned_task(
                TaskSettings(min_batch_size=1), devices=reports, parameters=model.num_parameters
            )
        except InvalidTask as error:
            yield f"{where}: devices cannot send updates of {model.num_parameters:,} parameters: {error}"
            return
        yield from FLOORS.find_size_problems(updates)
        return
    reasons, records = why_general(model, loss), project.settings.training.batch_size or reports
    yield from FLOORS.find_model_problems(
        model, where=where, is_exact=not reasons, records=records, candidates=classes
    )
    if reasons and find_spec("torch") is None:
        yield (
            f"{where}: {'; '.join(reasons)}: change that, or install torch for the helpers: "
            f"{how_to_install('torch', __name__, needs='this model')}"
        )
