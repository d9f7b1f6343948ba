"""What privacy cost a model, and what reports were worth, by rows that one holds in the clear.

    from adserver import compare_plain

    compare_plain("income-scaled.onnx", module, "people.npz", panel="panel.npz", encoder="encoder.json")

No ad server is asked.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adserver.client.choices import check_panels, choose
from adserver.client.tasks import read_encoder_of
from adserver.training.as_onnx import as_onnx
from adserver.training.eval_set import read_eval_set
from adserver.training.model_file import read_model
from adserver.training.pipeline import (
    ENCODER_ITSELF,
    LOSS_IS,
    encoder_of,
    notes_of,
    width_of_outputs,
    without_encoder,
)
from adserver.training.scoring import find_encoder
from adserver.training.standardising import standardise
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask
from maskedlark.model.losses import Loss
from maskedlark.terminal.exit_status import how_to_install
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from adserver.training.plain_comparison import PlainComparison


def compare_plain(
    private: bytes | str | Path,
    model: Any,
    people: str | Path,
    *,
    panel: str | Path,
    encoder: Encoder | Mapping[str, Any] | str | Path | None = None,
    loss: str | None = None,
    progress: bool = True,
) -> "PlainComparison":
    """Compare a private model with training in the clear: on the same rows, and on the panel alone.

    Without privacy the same network and a linear model are trained as one would, at several rates, and the
    panel chooses the better. On the panel alone they are trained on four fifths to score the other fifth, so
    that no row of the panel is scored by what learned from it. It takes some minutes.

    Args:
        private: The private model: what `export` or `calibrate` of a job wrote, in any form.
        model: The network before training, as it was given to `train`; it is centred and scaled by the panel
            as there.
        people: An .npz of features and labels of the rows that reported.
        panel: The .npz that was the job's `eval_set`. Where people have several rows in it, `browser-sim
            encode --user COLUMN` says whose each is, and all of a person are in one fifth.
        encoder: That of both files, if the model holds none. Without one each byte is a number to the linear
            model, also a code's.
        loss: What the private model was trained with, for a file that does not say it.
        progress: Show a bar on a terminal or in a notebook.

    Returns:
        How each does on the panel, the differences with their 95 % intervals, and the `verdict`, a sentence;
        a notebook shows them. Of numbers there are figures, and no differences.

    Raises:
        InvalidTask: the model does not say its loss, has other outputs than the network or was trained with
            another encoder, or torch is missing.
        InvalidModel: no model that a job could train.
        JobRefused(MALFORMED): a file is no .npz of the model's features and labels, or of another encoder.
    """
    from adserver.training.plain_comparison import compare_plain as compare
    from adserver.views.rehearsal import training_progress

    check_panels(people=people, panel=panel)
    if find_spec("torch") is None:
        raise InvalidTask(how_to_install("torch", __name__, needs="a comparison with plain training"))
    reported, examples = (read_eval_set(Path(one).read_bytes()) for one in (people, panel))
    width = examples.features.shape[1]
    if reported.features.shape[1] != width:
        raise InvalidTask(
            f"people has {plural(reported.features.shape[1], 'feature')} a row, and panel {width}: encode "
            "both with one encoder"
        )
    file = private if isinstance(private, bytes) else read_model(Path(private))
    is_known = encoder is not None or ENCODER_ITSELF in notes_of(file)
    columns = find_encoder(file, read_encoder_of(encoder)) if is_known else None
    trained = without_encoder(file, num_features=width, encoder=None)
    for expected in (encoder_of(trained), None if columns is None else columns.digest):
        for one in (reported, examples):
            one.check_encoder(expected, owner="model")
    told = notes_of(trained).get(LOSS_IS)
    if loss is None and told is None:
        raise InvalidTask("the model does not say what it was trained with: give loss=")
    trained_with = Loss.named(told or "") if loss is None else choose(Loss, "loss", loss)
    network = as_onnx(model, width)
    if (outputs := width_of_outputs(network)) != width_of_outputs(trained):
        raise InvalidTask(
            f"the private model has {plural(width_of_outputs(trained), 'output')}, and the network "
            f"{outputs}: give the network that it was trained from"
        )
    begun = standardise(network, trained_with, examples)
    with training_progress("training without privacy", is_shown=progress) as show:
        return compare(
            begun.model,
            trained,
            trained_with,
            reported,
            examples,
            encoder=columns,
            progress=show,
        )
