"""The tasks that browsers are served; the ad server is a task host."""

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine, select

from adserver.records.html_table import html_table
from adserver.store.audit_log import log_act
from adserver.store.database import find_id, insert_or_ignore
from adserver.store.paging import PageMarker, newest_first
from adserver.store.schema import encoders, tasks
from maskedlark import canonical
from maskedlark.audit_log import AuditAct
from maskedlark.errors import InvalidTask, JobReason
from maskedlark.frozen import frozen
from maskedlark.reports.task import LabelSpace, Task, TaskBundle
from maskedlark.runtime.database import reading

if TYPE_CHECKING:
    from maskedlark.encoding.encoder import Encoder

REFUSED_EVERY_S: Final = 60.0
"""How often an intake looks for tasks whose reports are to be refused."""


@frozen
class StoredTask:
    """A task as the ad server keeps it.

    Attributes:
        task_id: 32 bytes.
        bundle: What browsers are served.
        created_at: Unix seconds.
        refused_since: Unix seconds from which on its reports are refused, because it is long over; None: not
            yet.
    """

    task_id: bytes
    bundle: TaskBundle
    created_at: float
    refused_since: float | None = None

    def __repr__(self) -> str:
        """Show its id as commands take it, its name and its budgets."""
        task = self.bundle.task
        return (
            f"StoredTask({self.task_id.hex()[:12]} {task.name!r}: {task.num_features} features, "
            f"{_describe_default(task.labels)}, "
            f"epsilon {task.epsilon:g}, against the ad server with one helper {task.collusion_epsilon:g})"
        )

    def _repr_html_(self) -> str:
        """Return what the task allows as a table, for a notebook."""
        task = self.bundle.task
        of = task.measurement
        names = [] if of is None else [value.name for value in of.values] + [key.name for key in of.keys]
        rows: list[tuple[str, object]] = [
            ("task", self.task_id.hex()),
            ("name", task.name),
            ("origin", task.origin),
            ("features", task.num_features),
            ("labels", f"{task.labels.kind}, {_describe_default(task.labels)}"),
            ("measured", ", ".join(names)),
            ("least reports of a dataset", task.min_batch_size),
            ("epsilon", task.epsilon),
            ("epsilon against the ad server with one helper", task.collusion_epsilon),
            ("delta", task.delta),
        ]
        return html_table((), rows)


def _describe_default(labels: LabelSpace) -> str:
    return "no default label" if labels.default_label is None else f"default label {labels.default_label}"


@frozen
class _ListedTask:
    """A task as it is listed.

    Attributes:
        name: For people.
        origin: The ad-tech origin whose task it is.
        place: In lists.
    """

    name: str
    origin: str
    place: PageMarker

    @property
    def task_id(self) -> bytes:
        """Its id."""
        return self.place.key


class TaskStore:
    """The tasks of this ad server. Safe to share between threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # A task never changes, so what was read once stays right.
        self._known: dict[bytes, Task] = {}
        self._listed: dict[bytes, _ListedTask] = {}

    def add(self, bundle: TaskBundle, *, created_at: float, encoder: "Encoder | None" = None) -> bytes:
        """Store a task that both helpers signed, with the encoder that it names; its id.

        A task that is there stays as it is: the same settings are the same task.

        Raises:
            InvalidTask: a signature does not verify, or the encoder is not the one that the task names.
        """
        bundle.verify()
        # The helpers signed the digest alone: what browsers are served must be what they agreed to.
        if (encoder and encoder.digest) != bundle.task.encoder:
            raise InvalidTask(
                "the encoder's digest differs from the task's: give the encoder that the task names"
            )
        task_id = bundle.task.task_id
        with self._engine.begin() as connection:
            if encoder is not None:
                named = {"digest": encoder.digest, "encoder": canonical.encode(encoder)}
                connection.execute(insert_or_ignore(self._engine, encoders, ["digest"]).values(named))
            row = {"task_id": task_id, "bundle": canonical.encode(bundle), "created_at": created_at}
            added = insert_or_ignore(self._engine, tasks, ["task_id"]).values(row).returning(tasks.c.task_id)
            if connection.execute(added).one_or_none() is not None:
                log_act(connection, AuditAct.CREATE_TASK, task=task_id.hex(), name=bundle.task.name)
        return task_id

    def get(self, task_id: bytes) -> TaskBundle | None:
        """Return what browsers are served of a task at present, or None."""
        encoded = self.get_encoded(task_id)
        return None if encoded is None else canonical.decode(TaskBundle, encoded)

    def get_encoded(self, task_id: bytes) -> bytes | None:
        """Return the canonical bytes of what `get` returns."""
        asked = select(tasks.c.bundle).where(tasks.c.task_id == task_id)
        with reading(self._engine) as connection:
            encoded = connection.execute(asked).scalar()
        return None if encoded is None else bytes(encoded)

    def task(self, task_id: bytes) -> Task | None:
        """Return the task of an id, or None."""
        known = self._known.get(task_id)
        if known is None:
            bundle = self.get(task_id)
            if bundle is None:
                return None
            known = self._known[task_id] = bundle.task
        return known

    def encoder(self, task_id: bytes) -> "Encoder | None":
        """Return the encoder that the task of an id names, or None."""
        task = self.task(task_id)
        if task is None or task.encoder is None:
            return None
        with reading(self._engine) as connection:
            stored = connection.execute(
                select(encoders.c.encoder).where(encoders.c.digest == task.encoder)
            ).scalar_one()
        from maskedlark.encoding.encoder import read_encoder

        return read_encoder(stored)

    def replace_keys(self, bundle: TaskBundle) -> None:
        """Serve a task that is there with other key lists.

        Raises:
            InvalidTask: a signature does not verify.
        """
        bundle.verify()
        with self._engine.begin() as connection:
            connection.execute(
                tasks.update()
                .where(tasks.c.task_id == bundle.task.task_id)
                .values(bundle=canonical.encode(bundle))
            )

    def refuse(self, task_id: bytes, now_s: float) -> None:
        """Have intakes refuse a task's reports from now on; a task that is refused already stays so."""
        is_open = (tasks.c.task_id == task_id) & tasks.c.refused_since.is_(None)
        with self._engine.begin() as connection:
            connection.execute(tasks.update().where(is_open).values(refused_since=now_s))

    def list_refused(self) -> frozenset[bytes]:
        """Return the tasks whose reports are refused."""
        asked = select(tasks.c.task_id).where(tasks.c.refused_since.is_not(None))
        with reading(self._engine) as connection:
            return frozenset(bytes(task_id) for task_id in connection.execute(asked).scalars())

    def find(self, prefix: str) -> StoredTask:
        """Return the task whose id starts with these hex digits.

        Raises:
            JobRefused(UNKNOWN_TASK): none does, or several do.
        """
        with reading(self._engine) as connection:
            task_id = find_id(connection, tasks.c.task_id, prefix, missing=JobReason.UNKNOWN_TASK)
            row = connection.execute(select(tasks).where(tasks.c.task_id == task_id)).one()
        return _read_row(row)

    def page(self, *, limit: int, before: PageMarker | None = None) -> list[StoredTask]:
        """Return up to `limit` tasks, newest first; those before a place, if one is given."""
        asked = newest_first(select(tasks), tasks.c.created_at, tasks.c.task_id, before=before, limit=limit)
        with reading(self._engine) as connection:
            return [_read_row(row) for row in connection.execute(asked)]

    def list_items(self, *, limit: int, before: PageMarker | None = None) -> list[_ListedTask]:
        """Return up to `limit` tasks, the newest first; those before a place, if one is given.

        A bundle is decoded once for each task and process: whoever asks, and however often, an index answers.
        """
        c = tasks.c
        asked = newest_first(
            select(c.task_id, c.created_at), c.created_at, c.task_id, before=before, limit=limit
        )
        with reading(self._engine) as connection:
            ids = [bytes(row.task_id) for row in connection.execute(asked)]
            unknown = [task_id for task_id in ids if task_id not in self._listed]
            if unknown:
                for row in connection.execute(select(tasks).where(c.task_id.in_(unknown))):
                    stored = _read_row(row)
                    self._listed[stored.task_id] = _ListedTask(
                        name=stored.bundle.task.name,
                        origin=stored.bundle.task.origin,
                        place=PageMarker(at=stored.created_at, key=stored.task_id),
                    )
        return [self._listed[task_id] for task_id in ids]

    def all(self) -> list[StoredTask]:
        """Return every task, oldest first."""
        with reading(self._engine) as connection:
            return [
                _read_row(row)
                for row in connection.execute(select(tasks).order_by(tasks.c.created_at, tasks.c.task_id))
            ]


def _read_row(row: Any) -> StoredTask:
    return StoredTask(
        task_id=bytes(row.task_id),
        bundle=canonical.decode(TaskBundle, row.bundle),
        created_at=row.created_at,
        refused_since=row.refused_since,
    )
