"""`adserver task create`: make a task that both helpers sign."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adserver.cli.connected_target import anywhere_of
from adserver.cli.options import JsonOption, privacy
from adserver.records.defaults import ALL_DECOYS, DEFAULT_COLLUSION_FACTOR
from adserver.views.printing import print_json
from maskedlark.privacy.mechanism import Mechanism, NoiseDivision
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.terminal.options import option, panel, takes

if TYPE_CHECKING:
    from adserver.cli.connected_target import ConnectedTarget

_labels = panel("Labels")
_period = panel("Period")
_federated = panel("Federated")


def _read_fields(
    *,
    name: Annotated[str, option("What the task is called.")],
    origin: Annotated[
        str, option("The ad-tech origin that may use the reports, as in this server's certificate.")
    ],
    min_batch_size: Annotated[int, privacy("Fewer reports in a batch give only noise (k-anonymity).")],
    clip_norm: Annotated[float, privacy("The most that one report adds to a sum, as a norm.")],
    epsilon: Annotated[float, privacy("Privacy budget of each dataset against this ad server.")],
    mechanism: Annotated[
        Mechanism, privacy("The noise: gaussian clips in L2, laplace in L1; none only for debugging.")
    ] = Mechanism.GAUSSIAN,
    collusion_epsilon: Annotated[
        float | None,
        privacy(
            "Budget of each dataset against this ad server together with one helper, whose knowledge"
            " undoes the sampling of minibatches and one of the two noises. By default"
            f" {DEFAULT_COLLUSION_FACTOR:g} times --epsilon: what jobs over whole datasets spend of both."
        ),
    ] = None,
    delta: Annotated[float, privacy("The delta that both budgets are read at.")] = 1e-5,
    feature_epsilon: Annotated[
        float | None, privacy("Browsers add noise to each feature byte: its local epsilon.")
    ] = None,
    fake_report_rate: Annotated[float, privacy("The share of reports that are all decoys.")] = 0.0,
    unit: Annotated[
        PrivacyUnit, privacy("Whether budgets are of a dataset, or of the task and a person.")
    ] = PrivacyUnit.REPORT,
    reports_per_user: Annotated[int, privacy("Of unit user: a person's reports in a dataset.", min=1)] = 1,
    frac_bits: Annotated[int, privacy("Gradients are integers in units of 2^-frac_bits.")] = 32,
    max_dataset_size: Annotated[int, option("The most reports in one dataset.")] = 1 << 20,
    time_bucket_s: Annotated[int, _period("Reports tell their time rounded down to this.")] = 3_600,
    starts_at: Annotated[int | None, _period("Unix seconds; by default the current bucket's start.")] = None,
    expires_at: Annotated[int | None, _period("Unix seconds; instead of --days.")] = None,
) -> dict[str, Any]:
    """Return the fields of a task that are used as typed, by name."""
    return locals()


def _read_labels(
    *,
    classes: Annotated[int | None, _labels("Labels are the classes 0 to this less one.")] = None,
    max_value: Annotated[int | None, _labels("Labels are real values from 0 to this.")] = None,
    num_buckets: Annotated[
        int | None, _labels("How many buckets values are privatised to; by default --max-value.")
    ] = None,
    default_label: Annotated[
        int | None, _labels("What an impression reports that expires without a conversion.")
    ] = None,
) -> dict[str, Any]:
    """Return the label options, as `label_space` takes them by name."""
    return locals()


@takes(at=anywhere_of, given=_read_fields, labels=_read_labels, without=["round_deadline"])
def create_command(
    *,
    at: "ConnectedTarget",
    given: dict[str, Any],
    num_features: Annotated[
        int | None, option("Bytes in each report's features; default: the encoder's columns.")
    ] = None,
    encoder: Annotated[
        Path | None,
        option(
            "JSON of `browser-sim encode --fit`: how browsers make features. The task names its digest, and"
            " browsers are served it.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    labels: dict[str, Any],
    decoys: Annotated[
        str, _labels("Decoy labels beside the real one, or all other labels.", metavar="N|all")
    ] = ALL_DECOYS,
    split_noise: Annotated[
        bool,
        privacy(
            "Each helper adds half of the noise's variance: less noise, and less privacy if a helper"
            " colludes. Gaussian only.",
            "--split-noise",
        ),
    ] = False,
    no_noise: Annotated[
        bool, privacy("The same as --mechanism none; only loopback helpers accept it.", "--no-noise")
    ] = False,
    updates: Annotated[
        int | None,
        _federated(
            "Reports hold updates of a model of so many parameters, and no labels; the unit is user.",
            metavar="PARAMETERS",
        ),
    ] = None,
    cover: Annotated[
        float, _federated("The share of devices not drawn that send zeros.", min=0.0, max=1.0)
    ] = 1.0,
    with_weight: Annotated[bool, _federated("Release the sum of weights too.", "--with-weight")] = False,
    with_clip_count: Annotated[
        bool, _federated("Release how many were within the clip.", "--with-clip-count")
    ] = False,
    proof: Annotated[
        bool,
        privacy(
            "Each report proves that it counts once at most and that its values lie in their ranges; others"
            " are dropped before they are summed."
        ),
    ] = True,
    measurement: Annotated[
        Path | None,
        option(
            "JSON: the values and keys that reports hold to be measured; see reference/task.md.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    days: Annotated[float, _period("How long the task lasts from its start.")] = 30.0,
    out: Annotated[Path | None, option("Write the task bundle here, as browsers get it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a task: both helpers check it against their floors and sign it. Prints its id."""
    from adserver.client.tasks import task_fields
    from adserver.collecting.task_settings import encoder_from, label_space, measurement_from
    from maskedlark.canonical import encode
    from maskedlark.runtime.durable_file import write_durably

    fitted = encoder_from(encoder)
    if no_noise:
        given["mechanism"] = Mechanism.NONE
    if updates is not None:
        given |= {
            "unit": PrivacyUnit.USER,
            "updates": {
                "num_parameters": updates,
                "has_weight": with_weight,
                "has_clip_count": with_clip_count,
                "cover": cover,
            },
        }
    fields = task_fields(
        {
            **given,
            "noise": NoiseDivision.SPLIT if split_noise else NoiseDivision.FULL,
            "proof": proof and updates is None,
        },
        labels=label_space(**labels, encoder=fitted),
        encoder=fitted,
        features=num_features,
        measurement=measurement_from(measurement),
        days=days,
        decoys=decoys,
    )
    with at.asking("create task") as client:
        made = client.create_task_of(fields, fitted)
    if out is not None:
        write_durably(out, encode(made.bundle))
    if as_json:
        print_json({"task_id": made.task_id.hex(), "expires_at": made.bundle.task.expires_at})
    else:
        typer.echo(made.task_id.hex())
