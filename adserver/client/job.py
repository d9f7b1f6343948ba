"""A job in a notebook: watch it, look at its figures, take its model."""

import time
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from adserver.client.remote import RemoteAdServer
from adserver.client.tasks import read_encoder_of
from adserver.messages.job import job_facts
from adserver.records.exported_model import ExportedModel, InputForm
from adserver.records.frames import frame
from adserver.records.job_record import JobRecord
from adserver.records.job_state import STOPPED, JobState
from adserver.records.round_figures import RoundFigures
from adserver.store.job_files import files_of
from adserver.store.jobs import JobQueue, JobStore
from adserver.store.tasks import TaskStore
from adserver.views.job import last_evaluated, watch
from maskedlark.encoding.encoder import Encoder
from maskedlark.frozen import frozen
from maskedlark.runtime.durable_file import write_durably

if TYPE_CHECKING:
    import pandas as pd


@frozen
class LocalAdServer:
    """What lies beside a job of this machine's ad server.

    Attributes:
        engine: The ad server's database.
        data: Its folder.
    """

    engine: Engine
    data: Path

    @property
    def jobs(self) -> JobQueue:
        """The jobs."""
        return JobStore(self.engine, time.time)


@frozen
class Job:
    """One job of this ad server. It is run by `adserver serve`, whatever becomes of this process.

    Attributes:
        job_id: 16 bytes.
        at: Its ad server, on this machine or elsewhere.
    """

    job_id: bytes
    at: LocalAdServer | RemoteAdServer = field(repr=False)

    @property
    def record(self) -> JobRecord:
        """The job as stored now."""
        return self.at.jobs.get(self.job_id)

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self.record.state

    @property
    def is_over(self) -> bool:
        """True once it has stopped, for whatever reason."""
        return self.state in STOPPED

    def watch(self, *, progress: bool = True) -> "Job":
        """Wait until it stops, with a progress bar (in a notebook, too); the job itself."""
        watch(self.at.jobs, self.job_id, is_shown=progress)
        return self

    def figures(self) -> tuple[RoundFigures, ...]:
        """Return the figures of each round, in order."""
        return self.at.jobs.history(self.job_id)

    def summary(self) -> dict[str, Any]:
        """Return settings, progress and cost, as `adserver job show --json` prints them."""
        return job_facts(self.record, last_evaluated(self.figures())).model_dump(mode="json")

    def to_pandas(self) -> "pd.DataFrame":
        """Return a row a round: loss, accuracy, learning rate, gradient norm, noise to signal."""
        return frame(asdict(figures) for figures in self.figures())

    def export(
        self,
        path: str | Path | None = None,
        *,
        takes: str = "scaled",
        encoder: Encoder | str | Path | None = None,
    ) -> bytes:
        """Return its latest model as an ONNX file.

        Args:
            path: Where to write it too.
            takes: What the graph takes: "columns" (raw ones: the task's encoder is in it), "bytes", or
                "scaled": float32, each byte over 256.
            encoder: Of the columns, for a task that names none.

        Raises:
            JobRefused(WRONG_STATE): no round is done yet.
            InvalidTask: columns are wanted, and there is no encoder.
        """
        encoded = self.exported(InputForm(takes), read_encoder_of(encoder)).encoded
        if path is not None:
            write_durably(Path(path), encoded)
        return encoded

    def exported(self, takes: InputForm, encoder: Encoder | None = None) -> ExportedModel:
        """Export its latest model; a given encoder is put into the graph here, wherever the job is.

        Raises as `export`.
        """
        at = self.at
        if isinstance(at, RemoteAdServer) and encoder is None:
            return at.export(self.job_id, takes)
        from adserver.training.export import export_job, with_input

        plan = self.record.plan
        if isinstance(at, RemoteAdServer):
            made = at.export(self.job_id, InputForm.SCALED)
        else:
            made = export_job(files_of(at.engine, at.data, self.job_id), plan)
            encoder = encoder or TaskStore(at.engine).encoder(plan.task.task_id)
        return with_input(made, plan.task, takes, encoder)

    def cancel(self) -> None:
        """Stop it for good; the budget of rounds that were not run is given back.

        Raises:
            JobRefused(WRONG_STATE)
        """
        self.at.jobs.cancel(self.job_id)

    def resume(self) -> None:
        """Queue it again after it was refused or failed; it goes on with the round that it stopped at.

        Raises:
            JobRefused(WRONG_STATE)
        """
        self.at.jobs.resume(self.job_id)
