"""The ad server from a notebook or a program: what its commands do, in a few lines of Python.

from adserver import Client

with Client(data="play/adserver", helpers=("127.0.0.1:7100", "127.0.0.1:7101"), insecure=True) as client:
    job = client.train(module, loss="cross_entropy", epsilon=3)
    job.export("trained.onnx", takes="columns")
    result = client.aggregate("count", "purchase", group_by=["month"], epsilon=0.5)
    result.estimate("purchase", "5").value
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adserver.client.choices import check_numbers, suggest_names
from adserver.client.connection import id_of, warn_afterwards
from adserver.client.measuring import Measuring
from adserver.client.tasks import read_encoder_of, read_measurement_of, task_fields
from adserver.client.training import Training
from adserver.collecting.task_settings import label_space, note_on_labels
from adserver.records.access import Scope
from adserver.records.summaries import GrantSummary, HelperSummary, IntakeSummary
from adserver.store.datasets import Dataset
from adserver.store.tasks import StoredTask
from adserver.views.budget import ShownBudget
from adserver.views.printing import sealing_bars
from maskedlark.audit_log import AuditEntry
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask
from maskedlark.privacy.relation import Relation
from maskedlark.releases.budget import DatasetBudget, PlannedJob
from maskedlark.releases.statement import Evidence
from maskedlark.reports.measurement import Measurement


class Client(Measuring, Training):
    """An ad server's tasks, datasets, jobs and measurements. Use it in a `with`, or close it."""

    def tasks(self) -> list[StoredTask]:
        """Return all tasks, oldest first."""
        return [one.stored for one in self.server.tasks()]

    def task(self, task: str = "") -> StoredTask:
        """Return a task by the start of its id, which is not needed if there is only one.

        Raises:
            JobRefused(UNKNOWN_TASK)
        """
        return self.server.task(task).stored

    def refresh_keys(self) -> int:
        """Fetch the helpers' HPKE keys now, and return how many tasks' keys changed.

        A running server does so every minute.
        """
        return self.server.refresh_keys()

    @suggest_names
    def seal(
        self,
        task: str = "",
        *,
        max_reports: int | None = None,
        allow_small: bool = False,
        progress: bool = True,
    ) -> Dataset:
        """Make the waiting reports of a task a dataset at both helpers.

        Args:
            task: The start of its id; not needed if there is only one.
            max_reports: Take at most so many, the oldest first.
            allow_small: Also seal fewer than the task's min_batch_size, of which every round will be noise.
            progress: Show how far the helpers are.

        Raises:
            JobRefused, InvalidTask: too few reports wait, or a helper refuses.
            HelperUnavailable: a helper does not answer; call it again.
        """
        with sealing_bars(is_shown=progress) as show:
            return self.server.seal(task, max_reports=max_reports, allow_small=allow_small, progress=show)

    def datasets(self) -> list[Dataset]:
        """Return all datasets, oldest first."""
        return list(self.server.datasets())

    def dataset(self, dataset: str = "") -> Dataset:
        """Return a dataset by the start of its id, which is not needed if there is only one.

        Raises:
            JobRefused(UNKNOWN_DATASET)
        """
        return self.server.dataset(dataset)

    def abandon(self, dataset: str) -> Dataset:
        """Abandon a dataset that a helper refuses to commit, so that its reports wait to be sealed again.

        Raises:
            JobRefused(UNKNOWN_DATASET, WRONG_STATE)
        """
        return self.server.abandon(dataset)

    def budgets(
        self,
        *,
        task: str = "",
        dataset: Dataset | str = "",
        planned: PlannedJob | None = None,
        relation: Relation = Relation.ZERO,
    ) -> tuple[DatasetBudget, ...]:
        """Return both budgets of committed datasets, oldest first, optionally of one task or dataset.

        `next_epsilon` of each is what a next query, or a job with Gaussian noise whose rounds take all
        reports, may ask for.
        With a planned job, also what it would leave; with the relation LABEL, also the cost of telling one
        real label of a report from another.

        Raises:
            JobRefused(UNKNOWN_TASK, UNKNOWN_DATASET)
        """
        found = self.server.budgets(task=task, dataset=id_of(dataset), planned=planned, relation=relation)
        return tuple(map(ShownBudget.show, found))

    def statements(self, task: str = "") -> list[Evidence]:
        """Return what both helpers say, and signed, of each job and query of a task that they charged."""
        return list(self.server.statements(task))

    def create_token(self, scope: Scope = Scope.READ, *, name: str, days: float = 90.0) -> str:
        """Create a token for the admin API; it is not stored and cannot be shown again."""
        return self.server.create_token(scope, name=name, days=days)

    def tokens(self) -> list[GrantSummary]:
        """Return tokens and logged-in browsers, without their secrets."""
        return list(self.server.tokens())

    def revoke_token(self, token: str) -> GrantSummary:
        """Revoke a token or log a browser out, by its name or the start of its id, with immediate effect.

        Raises:
            InvalidTask: no token has that name or an id that starts so, or several do.
        """
        return self.server.revoke_token(token)

    def audit_log(self, *, after: int = -1, limit: int = 1_000, is_newest: bool = False) -> list[AuditEntry]:
        """Return up to `limit` entries of the audit log with numbers above `after`, oldest first.

        With `is_newest` they are the newest of these, else the oldest.
        `maskedlark.audit_log.verify_lines` verifies what they encode to.
        """
        return list(self.server.audit_log(after=after, limit=limit, is_newest=is_newest))

    def intake(self) -> IntakeSummary:
        """Return the number of reports by outcome since the server started; it needs the server's URL.

        Raises:
            InvalidTask: this is a data folder, whose counts only the running server knows.
        """
        return self.server.intake()

    def helpers(self) -> tuple[HelperSummary, HelperSummary]:
        """Return the state of both helpers, by role."""
        return self.server.helpers()

    @suggest_names
    def create_task(
        self,
        *,
        name: str,
        origin: str,
        min_batch_size: int,
        epsilon: float,
        clip_norm: float | None = None,
        encoder: Encoder | Mapping[str, Any] | str | Path | None = None,
        num_features: int | None = None,
        classes: int | None = None,
        default_label: int | str | None = None,
        measurement: Measurement | Mapping[str, Any] | str | Path | None = None,
        days: float = 30.0,
        **more: Any,
    ) -> StoredTask:
        """Make a task: both helpers check it against their floors and sign it.

        Args:
            name: What the task is called. Names may repeat: each call makes another task, with reports and
                budgets of its own, and `task` and `tasks` return those that exist by their ids.
            origin: The ad-tech origin that may use the reports.
            min_batch_size: Fewer reports give only noise.
            epsilon: Each dataset's budget against this ad server.
            clip_norm: The largest norm that one report's gradient adds to a sum. A task with a measurement
                needs none, and has 1.
            encoder: How browsers make features, its file, or the values of one; they are served it.
            num_features: By default as many as the encoder makes.
            classes: By default as many as the encoder has. With an encoder without a label, how many pages
                give as numbers; by default such a task only measures.
            default_label: What an impression reports that expires without a conversion: a label, or the name
                of one of the encoder's classes; by default none is special.
            measurement: The values and keys that reports hold, the file of `adserver task create`, or its
                values.
            days: How long the task lasts.
            more: Other fields of `maskedlark.reports.task.Task` by their names.

        Raises:
            InvalidTask: a setting is wrong, or a helper refuses it.
            HelperUnavailable: a helper does not answer.
        """
        check_numbers(
            min_batch_size=min_batch_size,
            clip_norm=clip_norm,
            epsilon=epsilon,
            collusion_epsilon=more.get("collusion_epsilon"),
            days=days,
        )
        fitted = read_encoder_of(encoder)
        given = {"name": name, "origin": origin, "min_batch_size": min_batch_size, "clip_norm": clip_norm}
        measured = read_measurement_of(measurement)
        declared = more.pop("labels", None)
        if declared is not None and (classes, default_label) != (None, None):
            raise InvalidTask("labels has classes and a default label: leave out classes and default_label")
        labels = declared or label_space(
            classes=classes,
            default_label=default_label,
            encoder=fitted,
            is_measured=measured is not None,
            is_python=True,
        )
        fields = task_fields(
            {**given, "epsilon": epsilon, **more},
            labels=labels,
            encoder=fitted,
            features=num_features,
            measurement=measured,
            days=days,
        )
        made = self.server.create_task(fields, fitted)
        if note := note_on_labels(labels, fitted):
            warn_afterwards(note, stacklevel=2)
        return made
