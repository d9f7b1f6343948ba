"""A job in a notebook: wait for it, look at its figures, take its model."""

from contextlib import suppress
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from adserver.client.choices import choose
from adserver.client.tasks import read_encoder_of
from adserver.messages.job import job_facts
from adserver.records.exported_model import CalibratedModel, ExportedModel, InputForm, ModelWeights
from adserver.records.facts import Facts
from adserver.records.frames import ColumnTypes, arrow_stream, frame
from adserver.records.job_record import JobRecord
from adserver.records.job_state import STOPPED, JobState
from adserver.records.local_plan import LocalPlan
from adserver.records.picture import Picture
from adserver.records.round_figures import RoundFigures
from adserver.training.cost import privacy_line
from adserver.views.job import last_evaluated, watch
from adserver.views.printing import check_installed, check_parts
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import JobReason, JobRefused
from maskedlark.escape import escape
from maskedlark.frozen import frozen
from maskedlark.runtime.durable_file import write_durably

if TYPE_CHECKING:
    import pandas as pd

    from adserver.client.ad_server import AdServer

_COLUMN_TYPES: Final[ColumnTypes] = {
    one.name: int if one.name == "rounds_done" else float for one in fields(RoundFigures)
}


@frozen
class Job:
    """One job of this ad server. It is run by `adserver serve`, whatever becomes of this process.

    Attributes:
        job_id: 16 bytes.
        at: Its ad server.
    """

    job_id: bytes
    at: "AdServer" = field(repr=False)

    def __repr__(self) -> str:
        """Show id, name, state, progress and cost so far; of a job that cannot be read now the id alone."""
        told = [repr(self.job_id.hex())]
        # Whatever keeps a job from being read, to show it must not raise
        with suppress(Exception):
            job = self.record
            told += [*([repr(job.name)] if job.name else []), job.state.value, job.progress]
            if not isinstance(job.plan, LocalPlan):
                told.append(privacy_line(job.plan, job.rounds_done))
        return f"Job({', '.join(told)})"

    def _repr_html_(self) -> str:
        """Return settings, progress and cost as a table, for a notebook."""
        return self.summary()._repr_html_()

    @property
    def record(self) -> JobRecord:
        """The job as stored now."""
        # Read each time: the job goes on while a notebook holds this object
        return self.at.job(self.job_id.hex())

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self.record.state

    @property
    def is_over(self) -> bool:
        """True once it has stopped, for whatever reason."""
        return self.state in STOPPED

    def wait(self, *, progress: bool = True) -> "Job":
        """Wait until it stops, with a progress bar (in a notebook, too); the job itself.

        What it waits for, such as another job in front of it, is a line of standard error, with and without
        a bar.

        Raises:
            JobRefused(WRONG_STATE): it was refused or has failed. `client.job(id)` still has its rounds.
        """
        stopped = watch(
            self.at,
            self.job_id,
            is_shown=progress,
            tell=lambda what: typer.echo(f"waiting: {what}", err=True),
        )
        if stopped.state in (JobState.REFUSED, JobState.FAILED):
            name, cause = self.job_id.hex(), "" if stopped.stop is None else f": {stopped.stop.cause}"
            then = "its resume() goes on, once the cause is gone"
            if stopped.stop is not None and stopped.stop.is_lasting:
                then = "resumed, it would stop again: train another; cancel() gives the unused budget back"
            raise JobRefused(
                JobReason.WRONG_STATE,
                f"the job {name} is {stopped.state} after {stopped.progress}{cause} (client.job({name!r}) "
                f"has what was done; {then})",
            )
        return self

    def figures(self) -> tuple[RoundFigures, ...]:
        """Return the figures of each round, in order."""
        return self.at.history(self.job_id)

    def summary(self) -> Facts:
        """Return settings, progress and cost, as `adserver job show --json` prints them."""
        return Facts(job_facts(self.record, last_evaluated(self.figures())).model_dump(mode="json"))

    def to_pandas(self) -> "pd.DataFrame":
        """Return a row a round: loss, accuracy, AUC, learning rate, gradient norm, noise to signal.

        `auc_low` and `auc_high` are the ends of the AUC's 99 % interval. The last is the length of both
        helpers' noise over that of the mean gradient under it.
        """
        return frame(map(asdict, self.figures()), _COLUMN_TYPES)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the same rows as an Arrow stream, for pandas, polars or duckdb."""
        return arrow_stream(map(asdict, self.figures()), _COLUMN_TYPES, requested_schema)

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw the curves, as `adserver job show --plot`; a notebook shows the picture that is returned.

        Args:
            path: Where to write it, too; ends in .png.

        Raises:
            InvalidTask: matplotlib is not installed; or the job is one without helpers.
        """
        from adserver.views.curves import draw_curves

        named = Path("curves.png" if path is None else path)
        check_installed(named)
        if path is not None:
            check_parts([named], (".png",), "curves are")
        picture = Picture(png=draw_curves(self.record, self.figures()))
        if path is not None:
            write_durably(named, picture.png)
        return picture

    def export(
        self,
        path: str | Path | None = None,
        *,
        takes: str = "scaled",
        encoder: Encoder | str | Path | None = None,
        weights: str = "latest",
    ) -> bytes:
        """Return its model as an ONNX file.

        Args:
            path: Where to write it too.
            takes: What the graph takes: "columns" (raw ones: the task's encoder is in it), "bytes", or
                "scaled": float32, each byte over 256.
            encoder: Of the columns, for a task that names none.
            weights: "latest", or "best": those of the latest round whose loss on the job's evaluation set, of
                two classes after calibration, is within 1 % of the least.

        Raises:
            JobRefused(WRONG_STATE): no round is done yet, or of the best weights: none was evaluated.
            InvalidTask: columns are wanted, and there is no encoder; or no such form or weights.
        """
        made = self.exported(
            choose(InputForm, "takes", takes),
            read_encoder_of(encoder),
            choose(ModelWeights, "weights", weights),
        )
        encoded = made.encoded
        if path is not None:
            write_durably(Path(path), encoded)
        return encoded

    def calibrate(
        self,
        path: str | Path | None = None,
        *,
        evaluation: str = "",
        panel: str | Path | None = None,
        takes: str = "scaled",
        weights: str = "latest",
    ) -> CalibratedModel:
        """Return its model with its logit scaled and shifted so that predictions add up.

        Args:
            path: Where to write the ONNX file too.
            evaluation: The start of the id of an evaluation of the same weights; costs nothing again.
            panel: Instead: an .npz file of features and labels of your own.
            takes: As for `export`.
            weights: As for `export`.

        Raises:
            JobRefused: no round is done yet, or the panel does not fit the model.
            InvalidTask: the evaluation was of another model, or nothing can be calibrated by it.
        """
        made = self.at.calibrate(
            self.job_id,
            evaluation=evaluation,
            panel=None if panel is None else Path(panel).read_bytes(),
            takes=choose(InputForm, "takes", takes),
            weights=choose(ModelWeights, "weights", weights),
        )
        if path is not None:
            write_durably(Path(path), made.exported.encoded)
        # To standard error, as a training's lines
        if made.warning:
            typer.echo(f"warning: {escape(made.warning)}", err=True)
        return made

    def exported(
        self,
        takes: InputForm,
        encoder: Encoder | None = None,
        weights: ModelWeights = ModelWeights.LATEST,
    ) -> ExportedModel:
        """Export its model; a given encoder is put into the graph here, wherever the job is.

        Raises as `export`.
        """
        # The server puts in the task's encoder; one that the task does not name is only known here
        if encoder is None:
            return self.at.export(self.job_id, takes, weights)
        from adserver.training.export import with_input

        return with_input(self.at.export(self.job_id, weights=weights), self.record.plan, takes, encoder)

    def cancel(self) -> None:
        """Stop it for good; the budget of rounds that were not run is given back.

        Without helpers it is closed to devices, and `resume` opens it again.

        Raises:
            JobRefused(WRONG_STATE)
        """
        self.at.cancel(self.job_id)

    def resume(self) -> None:
        """Queue it again after it was refused or failed; it goes on with the round that it stopped at.

        Raises:
            JobRefused(WRONG_STATE)
        """
        self.at.resume(self.job_id)
