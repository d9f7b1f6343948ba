"""The admin API of an ad server on another machine, with the errors and the records that are used here.

far = RemoteAdServer("https://ads.example:8443", token, ca=Path("ads.crt"))
far.jobs.find("3f").state
"""

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from time import monotonic
from typing import Any, Final
from urllib.parse import urlencode

from adserver.client.far_answer import items_of, no_answer, reading_answer, reads_answer, require
from adserver.client.remote_connection import check_address, connect, ended_after
from adserver.client.remote_values import budget_from_json, dataset_from_json, plan_from_json, task_from_json
from adserver.collecting.task_body import TaskBody
from adserver.records.dataset_state import DatasetState
from adserver.records.exported_model import ExportedModel, InputForm
from adserver.records.job_record import JobRecord
from adserver.records.round_figures import RoundFigures
from adserver.records.submissions import PlanRequest, Submission
from adserver.records.typed_ids import the_only
from adserver.store.datasets import Dataset
from adserver.store.tasks import StoredTask
from adserver.training.planning import Planned
from adserver.training.submission_body import PlanBody, SubmissionBody
from adserver.views.record import figures_from_json, record_from_json
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import (
    REFUSALS,
    HelperUnavailable,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
)
from maskedlark.escape import escape_values
from maskedlark.frozen import frozen
from maskedlark.releases.budget import DatasetBudget, PlannedJob
from maskedlark.reports.task import Task

_PREFIX: Final = "/api/v1"
_REFUSED_FROM: Final = 400
_MOVED: Final = range(300, 400)
"""What a proxy says, and no ad server: a token is not sent on."""
_MAY_BE_DONE: Final = "; the request may have been carried out: check that ad server before you repeat it"
"""Of what has no id of the client's choice: nothing says that a request is the same as one before."""
MOST_ANSWER_BYTES: Final = 96 << 20
"""Of one answer: the model of the most parameters that helpers take has 56 MiB in Base64."""
MOST_PAGES: Final = 1_000
MOST_PAGE_BYTES: Final = 16 << 20
MOST_LIST_BYTES: Final = 256 << 20
"""Of all pages of one list: a million rounds have 200 MB."""
_MOST_DETAIL: Final = 4_000
"""Characters of what a refusal says."""
_ITEMS: Final = 200
_ROUNDS: Final = 1_000
"""Items of a page that are asked for, of rounds and of all else."""
_CANONICAL: Final = frozenset({"bundle", "plan"})
"""Fields whose bytes are signed or digested: names in them are escaped where they are printed."""
_figures: Final = reads_answer(figures_from_json)
_DIGITS: Final = frozenset("0123456789abcdefABCDEF")


@reads_answer
def _record(sent: dict[str, Any]) -> JobRecord:
    """A job, whose figures are possible."""
    found = record_from_json(sent)
    require(0 <= found.rounds_done <= found.plan.job.rounds, "rounds_done is no number of its rounds")
    return found


@dataclass(slots=True)
class _Bound:
    """What is left to one answer, or to all pages of a list.

    Attributes:
        each: Bytes of one answer.
        left: Bytes of all.
        until_s: By `monotonic`.
    """

    each: int
    left: int
    until_s: float

    @property
    def most(self) -> int:
        """Bytes that the next answer may have."""
        return min(self.each, self.left)


@frozen
class RemoteAdServer:
    """An ad server that is reached over its admin API.

    Attributes:
        url: Of its dashboard; https, or http on loopback.
        token: As `adserver token create` printed it.
        ca: PEM: the certificate to trust, where the system does not.
        timeout_s: For one answer, and for all pages of a list.
    """

    url: str
    token: str = field(repr=False)
    ca: Path | None = None
    timeout_s: float = 900.0

    def __post_init__(self) -> None:
        check_address(self.url, self.token)

    @property
    def jobs(self) -> "FarJobs":
        """Its jobs."""
        return FarJobs(self)

    def task_items(self) -> list[dict[str, Any]]:
        """Return its tasks as the API lists them, with their counts of reports, oldest first."""
        return list(self.pages("/tasks"))[::-1]

    def task_item(self, task: str) -> dict[str, Any]:
        """Return one task as the API shows it, by the start of its id; not needed if there is one."""
        if not task:
            with reading_answer():
                found = [bytes.fromhex(one["task_id"]) for one in items_of(self.get("/tasks", limit=2), 2)]
            task = the_only(found, task, JobReason.UNKNOWN_TASK).hex()
        return self.get(f"/tasks/{safe_id(task, JobReason.UNKNOWN_TASK)}")

    def tasks(self) -> list[StoredTask]:
        """Return its tasks, oldest first."""
        with reading_answer():
            ids = [str(one["task_id"]) for one in self.task_items()]
        return [self.task(one) for one in ids]

    def task(self, task: str) -> StoredTask:
        """Return one task, by the start of its id; not needed if there is only one."""
        return task_from_json(self.task_item(task))

    def _task_of(self, sent: Mapping[str, Any]) -> Task:
        """Return the task that an answer names."""
        return self.task(str(sent.get("task_id", ""))).bundle.task

    def datasets(self) -> list[Dataset]:
        """Return its datasets, oldest first."""
        return [dataset_from_json(one) for one in self.pages("/datasets")][::-1]

    def dataset(self, dataset: str) -> Dataset:
        """Return one dataset, by the start of its id; not needed if there is only one."""
        if dataset:
            path = f"/datasets/{safe_id(dataset, JobReason.UNKNOWN_DATASET)}"
            return dataset_from_json(self.get(path))
        named = {one.dataset_id: one for one in self.datasets() if one.dataset_id is not None}
        return named[the_only(list(named), dataset, JobReason.UNKNOWN_DATASET)]

    def budgets(
        self, *, task: str = "", dataset: str = "", planned: PlannedJob | None = None
    ) -> tuple[DatasetBudget, ...]:
        """Return the budgets of committed datasets, as `Budgets.of_all` does."""
        asked = {} if planned is None else asdict(planned)
        asked.pop("is_allocated", None)
        wanted = (
            [dataset]
            if dataset
            else [
                one.dataset_id.hex()
                for one in self.datasets()
                if one.dataset_id is not None
                and one.state is DatasetState.COMMITTED
                and one.task_id.hex().startswith(task)
            ]
        )
        sent = [self.get(f"/budgets/{safe_id(one, JobReason.UNKNOWN_DATASET)}", **asked) for one in wanted]
        return tuple(budget_from_json(one, self._task_of(one)) for one in sent)

    def plan(self, request: PlanRequest, dataset: str) -> Planned:
        """Plan as `adserver.training.planning.plan_job` does; it spends nothing."""
        body = PlanBody.of(request, dataset)
        sent = self.post("/jobs/plan", body.model_dump_json())
        return plan_from_json(sent, self._task_of(sent))

    def submit(self, submission: Submission, *, dataset: str, task: str = "") -> bytes:
        """Check a job and queue it there; its id."""
        body = SubmissionBody.of(submission, dataset=dataset, task=task)
        with reading_answer():
            return bytes.fromhex(self.post("/jobs", body.model_dump_json())["job_id"])

    def create_task(self, fields: Mapping[str, Any], encoder: Encoder | None) -> StoredTask:
        """Create a task from every field but its helpers; the same fields are the same task."""
        body = TaskBody.of(fields, encoder)
        return task_from_json(self.post("/tasks", body.model_dump_json(), is_once=True))

    def seal(self, task: str = "", *, max_reports: int | None, allow_small: bool) -> Dataset:
        """Make the waiting reports of a task a dataset there."""
        asked = {"task": task, "max_reports": max_reports, "allow_small": allow_small}
        return dataset_from_json(self.post_json("/datasets", asked))

    def export(self, job_id: bytes, takes: InputForm) -> ExportedModel:
        """Export a job's latest model, whose graph takes the requested input."""
        sent = self.get(f"/jobs/{job_id.hex()}/model", takes=takes.value)
        with reading_answer():
            return ExportedModel(encoded=b64decode(sent["model"]), rounds_done=int(sent["rounds_done"]))

    def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        """Read a path. Raises as `post`."""
        asked = {name: value for name, value in parameters.items() if value not in (None, "")}
        return self._ask("GET", f"{path}?{urlencode(asked)}" if asked else path, None, self._bound())

    def post(self, path: str, body: str = "", *, is_once: bool = False) -> dict[str, Any]:
        """Do something.

        Args:
            path: After `/api/v1`.
            body: JSON.
            is_once: Whether it is done once however often it is asked.

        Raises:
            MaskedLarkError: what the ad server refuses with, as it would here.
            HelperUnavailable: it does not answer.
        """
        return self._ask("POST", path, body.encode(), self._bound(), is_once=is_once)

    def post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Do something that takes settings. Raises as `post`."""
        return self.post(path, json.dumps(body))

    def pages(
        self,
        path: str,
        limit: int = _ITEMS,
        *,
        cursor: str = "after",
        following: str = "next",
        after: Any = "",
    ) -> Iterator[dict[str, Any]]:
        """Yield every item of a long list, page after page, within one bound of bytes and time.

        Args:
            path: After `/api/v1`.
            limit: Items of a page.
            cursor: The parameter that says where a page begins.
            following: The field that says where the next one does; null on the last page.
            after: Where the first page begins.

        Raises:
            JobRefused(BAD_ANSWER): the list is longer than any that an ad server has.
            HelperUnavailable: it takes longer than `timeout_s`.
        """
        bound = self._bound(each=MOST_PAGE_BYTES, left=MOST_LIST_BYTES)
        for _ in range(MOST_PAGES):
            asked = {"limit": limit} if after == "" else {"limit": limit, cursor: after}
            page = self._ask("GET", f"{path}?{urlencode(asked)}", None, bound)
            yield from items_of(page, limit)
            after = page.get(following)
            if after is None:
                return
        raise no_answer(f"a list of more than {MOST_PAGES} pages")

    def _bound(self, *, each: int | None = None, left: int | None = None) -> _Bound:
        """What one answer may take."""
        one = MOST_ANSWER_BYTES
        return _Bound(
            each=one if each is None else each,
            left=one if left is None else left,
            until_s=monotonic() + self.timeout_s,
        )

    def _ask(
        self, method: str, path: str, body: bytes | None, bound: _Bound, *, is_once: bool = True
    ) -> dict[str, Any]:
        most, may_be_done, left_s = bound.most, False, max(bound.until_s - monotonic(), 0.001)
        connection = connect(self.url, ca=self.ca, timeout_s=left_s)
        try:
            connection.connect()
            may_be_done = not is_once
            headers = {"authorization": f"Bearer {self.token}"}
            with ended_after(connection, left_s):
                connection.request(method, f"{_PREFIX}{path}", body, headers)
                with connection.getresponse() as answer:
                    content, left = answer.read(most + 1), answer.length
            if len(content) <= most and left:
                raise IncompleteRead(content, left)
        except (OSError, HTTPException) as error:
            told = f"the ad server at {self.url} does not answer: {error}"
            raise HelperUnavailable(told + (_MAY_BE_DONE if may_be_done else "")) from None
        finally:
            connection.close()
        if len(content) > most:
            raise no_answer(f"more than {most} bytes" + (_MAY_BE_DONE if may_be_done else ""))
        bound.left -= len(content)
        try:
            said = escape_values(json.loads(content), verbatim=_CANONICAL)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict) or answer.status in _MOVED:
            told = f"the server at {self.url} is not an ad server's admin API: check the URL"
            raise HelperUnavailable(told + (_MAY_BE_DONE if may_be_done else ""))
        if answer.status >= _REFUSED_FROM:
            raise _refusal(answer.status, said)
        return said


@dataclass(frozen=True, slots=True)
class FarJobs:
    """The jobs of an ad server elsewhere, with the methods of `adserver.store.jobs.JobStore`."""

    far: RemoteAdServer

    def get(self, job_id: bytes) -> JobRecord:
        """Return one job."""
        return self.find(job_id.hex())

    def find(self, prefix: str) -> JobRecord:
        """Return the one job whose id starts with some hex digits; without any, the only job."""
        if not prefix:
            page = items_of(self.far.get("/jobs", limit=2), 2)
            with reading_answer():
                found = [bytes.fromhex(one["job_id"]) for one in page]
            the_only(found, prefix, JobReason.UNKNOWN_JOB)
            return _record(page[0])
        return _record(self.far.get(f"/jobs/{safe_id(prefix, JobReason.UNKNOWN_JOB)}"))

    def all(self) -> tuple[JobRecord, ...]:
        """Return every job, oldest first."""
        return tuple(_record(one) for one in self.far.pages("/jobs"))[::-1]

    def history(self, job_id: bytes, *, after_rounds: int = -1) -> tuple[RoundFigures, ...]:
        """Return the figures of a job's rounds after `after_rounds`, in order."""
        sent = self.far.pages(
            f"/jobs/{job_id.hex()}/rounds",
            _ROUNDS,
            cursor="after_rounds",
            following="next_after_rounds",
            after=after_rounds,
        )
        return tuple(map(_figures, sent))

    def cancel(self, job_id: bytes) -> None:
        """Stop a job for good."""
        self.far.post(f"/jobs/{job_id.hex()}/cancel")

    def resume(self, job_id: bytes) -> None:
        """Queue a refused or failed job again."""
        self.far.post(f"/jobs/{job_id.hex()}/resume")


def safe_id(prefix: str, missing: JobReason) -> str:
    """Check the typed start of an id before it enters a path.

    Raises:
        JobRefused(missing): it is not hexadecimal.
    """
    if not prefix or not set(prefix) <= _DIGITS:
        raise JobRefused(
            missing, f"the id is {prefix!r}: expected hexadecimal digits, a whole id or its start"
        )
    return prefix


def _refusal(status: int, said: Mapping[str, Any]) -> MaskedLarkError:
    """Convert a problem document back to the error that it was made of."""
    kind, reason, detail = (str(said.get(name, ""))[:_MOST_DETAIL] for name in ("error", "reason", "detail"))
    if kind == HelperUnavailable.__name__:
        return HelperUnavailable(detail)
    if kind in REFUSALS and kind != InvalidTask.__name__:
        with suppress(ValueError):
            return REFUSALS[kind](reason, detail)
    return InvalidTask(f"the ad server refused the request ({status} {reason}): {detail}")
