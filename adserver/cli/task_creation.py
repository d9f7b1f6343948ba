"""`adserver task create`: make a task that both helpers sign."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adserver.cli.options import JsonOption, privacy
from adserver.cli.target import connected_server_of, trace
from adserver.records.defaults import ALL_DECOYS, DEFAULT_COLLUSION_FACTOR
from adserver.views.printing import print_json
from maskedlark.privacy.mechanism import Mechanism, NoiseDivision
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.terminal.options import option, panel, takes

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer

_labels = panel("Labels")
_period = panel("Period")
_federated = panel("Federated")


def _read_fields(
    *,
    name: Annotated[str, option("Name of the task.")],
    origin: Annotated[
        str, option("The ad-tech origin that may use the reports; the same as in this server's certificate.")
    ],
    min_batch_size: Annotated[int, privacy("A batch of fewer reports gives only noise (k-anonymity).")],
    epsilon: Annotated[float, privacy("Privacy budget of each dataset against this ad server.")],
    clip_norm: Annotated[
        float | None,
        privacy(
            "The largest norm that one report's gradient, or an update, adds to a sum. Required unless the "
            "task has a measurement, whose values have bounds of their own; then 1."
        ),
    ] = None,
    mechanism: Annotated[
        Mechanism, privacy("The noise: gaussian clips in L2, laplace in L1; none only for debugging.")
    ] = Mechanism.GAUSSIAN,
    collusion_epsilon: Annotated[
        float | None,
        privacy(
            "Privacy budget of each dataset against the ad server with one helper, "
            "which knows the minibatches and one of the two noises. Default: "
            f"{DEFAULT_COLLUSION_FACTOR:g} times --epsilon, the ratio that jobs over whole datasets "
            "spend."
        ),
    ] = None,
    delta: Annotated[float, privacy("The delta of both budgets.")] = 1e-5,
    feature_epsilon: Annotated[
        float | None, privacy("Local epsilon of the noise that browsers add to each feature byte.")
    ] = None,
    fake_report_rate: Annotated[float, privacy("Share of reports that contain only decoys.")] = 0.0,
    unit: Annotated[
        PrivacyUnit, privacy("The unit of budgets: a dataset, or a person within the task.")
    ] = PrivacyUnit.REPORT,
    reports_per_user: Annotated[
        int, privacy("For unit user: the most reports of a person in a dataset.", min=1)
    ] = 1,
    frac_bits: Annotated[int, privacy("Encode gradients as integers in units of 2^-frac_bits.")] = 32,
    max_dataset_size: Annotated[int, option("The most reports in one dataset.")] = 1 << 20,
    time_bucket_s: Annotated[int, _period("Seconds to which report times are rounded down.")] = 3_600,
    starts_at: Annotated[
        int | None, _period("Start in Unix seconds; default: the start of the current time bucket.")
    ] = None,
    expires_at: Annotated[int | None, _period("End in Unix seconds; instead of --days.")] = None,
) -> dict[str, Any]:
    """Return the fields of a task that are used as typed, by name."""
    return locals()


def _read_labels(
    *,
    classes: Annotated[
        int | None,
        _labels(
            "Number of classes: labels are 0 to this number minus 1. Default: the encoder's. With an encoder "
            "without a label, give it if pages give labels as numbers; without it, such a task only measures."
        ),
    ] = None,
    max_value: Annotated[int | None, _labels("Largest value: labels are real values from 0 to this.")] = None,
    num_buckets: Annotated[
        int | None, _labels("Number of buckets for privatised values; default: --max-value.")
    ] = None,
    default_label: Annotated[
        str | None,
        _labels(
            "Label of an impression that expires without a conversion: a number, or the name of one of the "
            "encoder's classes."
        ),
    ] = None,
) -> dict[str, Any]:
    """Return the label options, as `label_space` takes them by name."""
    given = locals()
    if default_label is not None and default_label.isdecimal():
        # A label, also where classes have numbers for names
        given["default_label"] = int(default_label)
    return given


@takes(server=connected_server_of, given=_read_fields, labels=_read_labels, without=["round_deadline"])
def _create_command(
    *,
    server: "AdServer",
    given: dict[str, Any],
    num_features: Annotated[
        int | None, option("Number of feature bytes in a report; default: the encoder's number of columns.")
    ] = None,
    encoder: Annotated[
        Path | None,
        option(
            "JSON file from `browser-sim encode --fit`, with which browsers make features. The "
            "task contains its digest, and this server serves it to browsers.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    labels: dict[str, Any],
    decoys: Annotated[
        str,
        _labels(
            "Number of decoy labels in addition to the real one, or all for all other labels.",
            metavar="N|all",
        ),
    ] = ALL_DECOYS,
    split_noise: Annotated[
        bool,
        privacy(
            "Each helper adds half of the noise's variance: less noise, and less privacy against the ad "
            "server with one helper. Gaussian only.",
            "--split-noise",
        ),
    ] = False,
    no_noise: Annotated[
        bool, privacy("The same as --mechanism none; accepted only by loopback helpers.", "--no-noise")
    ] = False,
    updates: Annotated[
        int | None,
        _federated(
            "Number of model parameters: reports contain updates of such a model and no labels. "
            "The unit is user.",
            metavar="PARAMETERS",
        ),
    ] = None,
    cover: Annotated[
        float, _federated("Share of the devices that were not drawn that send zeros.", min=0.0, max=1.0)
    ] = 1.0,
    with_weight: Annotated[bool, _federated("Also release the sum of weights.", "--with-weight")] = False,
    with_clip_count: Annotated[
        bool, _federated("Also release how many updates were within the clip bound.", "--with-clip-count")
    ] = False,
    proof: Annotated[
        bool,
        privacy(
            "Require a proof that each report counts at most once and that its values lie in their "
            "ranges; other reports are dropped before the sum."
        ),
    ] = True,
    measurement: Annotated[
        Path | None,
        option(
            "JSON file with the values and keys to measure; see reference/task.md.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    days: Annotated[float, _period("Days that the task lasts from its start.")] = 30.0,
    out: Annotated[Path | None, option("Write the task bundle that browsers receive to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a task that both helpers check against their floors and sign, and print its id."""
    from adserver.client.tasks import CLIP_NORM_OF_MEASUREMENT, task_fields
    from adserver.collecting.task_settings import (
        encoder_from,
        label_space,
        measurement_from,
        note_on_labels,
    )
    from maskedlark.canonical import encode
    from maskedlark.runtime.durable_file import write_durably

    fitted = encoder_from(encoder)
    if no_noise:
        given["mechanism"] = Mechanism.NONE
    if updates is not None:
        # A device's rows are its person's alone, so what an update costs is the person's
        given |= {
            "unit": PrivacyUnit.USER,
            "updates": {
                "num_parameters": updates,
                "has_weight": with_weight,
                "has_clip_count": with_clip_count,
                "cover": cover,
            },
        }
    measured = measurement_from(measurement)
    spaced = label_space(**labels, encoder=fitted, is_measured=measured is not None)
    fields = task_fields(
        {
            **given,
            "noise": NoiseDivision.SPLIT if split_noise else NoiseDivision.FULL,
            # A proof is of masks and measured values, and updates have neither
            "proof": proof and updates is None,
        },
        labels=spaced,
        encoder=fitted,
        features=num_features,
        measurement=measured,
        days=days,
        decoys=decoys,
    )
    if given["clip_norm"] is None:
        typer.echo(
            f"note: --clip-norm is {CLIP_NORM_OF_MEASUREMENT:g}: the largest bound of jobs that train on "
            "this task, and of no measured value",
            err=True,
        )
    if note := note_on_labels(spaced, fitted):
        typer.echo(f"note: {note}", err=True)
    with trace(server, "create task"):
        made = server.create_task(fields, fitted)
    if out is not None:
        write_durably(out, encode(made.bundle))
    if as_json:
        print_json({"task_id": made.task_id.hex(), "expires_at": made.bundle.task.expires_at})
    else:
        typer.echo(made.task_id.hex())
