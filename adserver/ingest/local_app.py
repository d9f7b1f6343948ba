"""Jobs without helpers over HTTP: what devices that noise their own updates talk to.

    GET  /v1/local           ids of open jobs, the newest first, 1,000 at most
    GET  /v1/local/{job}     length and canonical LocalJob, then what to train from; 204 when the job is over
                             line: `Round.encode`; draw and discard: 8 bytes of returns, then an instance
    POST /v1/local/{job}     one LocalUpdate: 201 accepted, 200 a duplicate, 4xx rejected

An update is noised before it leaves its device, so the ad server may see it. A duplicate is answered with
success, as of a report.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from threading import Lock
from typing import Final, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adserver.records.job_record import JobRecord
from adserver.records.job_state import JobState
from adserver.records.local_plan import LocalPlan
from adserver.store.jobs import JobStore
from adserver.store.local.models import LocalModels
from maskedlark.canonical import encode
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_job import LocalUpdate
from maskedlark.federated.spam import SpamTest
from maskedlark.federated.strategies.line import Line
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.runtime.database import database_at_hand

MOST_LISTED: Final = 1_000
LARGEST_WEIGHT: Final = 1 << 62
"""Beyond it a device's integers could wrap."""
# Updates in flight that a spam test is calibrated for: a run of it holds them, and devices say how many
_MOST_IN_FLIGHT: Final = 1 << 14
_T = TypeVar("_T")
ReadBody = Callable[[Request, int], Awaitable[bytes]]


class LocalIntake:
    """What HTTP does with jobs without helpers. Safe to share between threads."""

    def __init__(
        self, jobs: JobStore, models: LocalModels, randomness: Randomness = system_randomness
    ) -> None:
        self._jobs = jobs
        self._models = models
        self._randomness = randomness
        self._tests: dict[tuple[bytes, int], SpamTest] = {}
        self._lock = Lock()
        self._calibrating = Lock()
        self.counts: Counter[str] = Counter()

    def routes(self, read_body: ReadBody) -> list[Route]:
        """Return the routes, for `http_app`.

        Args:
            read_body: Reads a body of at most so many bytes, with `http_app`'s limits on room and time.
        """

        async def list_jobs(_request: Request) -> Response:
            return JSONResponse({"jobs": await _in_thread(self.open_jobs)})

        async def get_job(request: Request) -> Response:
            job_id = _job_id(request)
            body = await _in_thread(lambda: self.download(job_id))
            if body is None:
                return Response(status_code=HTTPStatus.NO_CONTENT)
            return Response(body, media_type="application/octet-stream")

        async def post_update(request: Request) -> Response:
            job_id = _job_id(request)
            body = await read_body(request, await _in_thread(lambda: self.most_bytes(job_id)))
            is_new = await _in_thread(lambda: self.take(job_id, body))
            return JSONResponse({"result": "accepted" if is_new else "duplicate"}, 201 if is_new else 200)

        return [
            Route("/v1/local", list_jobs),
            Route("/v1/local/{job_id}", get_job, methods=["GET"]),
            Route("/v1/local/{job_id}", post_update, methods=["POST"]),
        ]

    def open_jobs(self) -> list[str]:
        """Return the ids of jobs that take updates, in hex."""
        return [job_id.hex() for job_id in self._jobs.newest_ids(JobState.OPEN, limit=MOST_LISTED)]

    def download(self, job_id: bytes) -> bytes | None:
        """Return what a device downloads; None when the job is over.

        Raises:
            JobRefused(UNKNOWN_JOB)
        """
        job, plan = self._find(job_id)
        settings, _ = plan.read_instructions()
        if job.state is not JobState.OPEN:
            return None
        if isinstance(settings, Line):
            asked = self._models.rounds.find_round(job_id, settings)
            if asked is None:
                return None
            content = asked.encode()
        else:
            drawn = self._models.instances.draw(job_id, self._randomness)
            content = drawn.returns.to_bytes(8, "little") + drawn.instance.astype("<i8").tobytes()
        written = encode(plan.local)
        return len(written).to_bytes(4, "little") + written + content

    def most_bytes(self, job_id: bytes) -> int:
        """Return the size of an update.

        Raises:
            JobRefused(UNKNOWN_JOB)
        """
        _, plan = self._find(job_id)
        return LocalUpdate.num_bytes(plan.read_instructions().model.size)

    def take(self, job_id: bytes, body: bytes) -> bool:
        """Take one update: whether it is new.

        Raises:
            JobRefused(UNKNOWN_JOB)
            ReportRejected: it is counted, and nothing of it is stored.
        """
        try:
            self._take(job_id, body)
        except ReportRejected as rejection:
            self._count(rejection.reason.value)
            if rejection.reason is ReportReason.DUPLICATE_ID:
                return False
            raise
        self._count("accepted")
        return True

    def _take(self, job_id: bytes, body: bytes) -> None:
        job, plan = self._find(job_id)
        settings, model = plan.read_instructions()
        update = LocalUpdate.decode(body, model.size)
        if isinstance(settings, Line):
            self._models.rounds.add(job_id, settings, update)
        else:
            if max(int(update.vector.max()), -int(update.vector.min())) >= LARGEST_WEIGHT:
                raise ReportRejected(ReportReason.IMPLAUSIBLE, "a weight is over the limit of 2^62 units")
            test = self._spam_test(job, settings, model.size) if plan.is_tested else None
            self._models.instances.replace(job_id, update, self._randomness, test=test)

    def _find(self, job_id: bytes) -> tuple[JobRecord, LocalPlan]:
        job = self._jobs.get(job_id)
        if not isinstance(job.plan, LocalPlan):
            raise JobRefused(JobReason.UNKNOWN_JOB, "there is no job without helpers with this id")
        return job, job.plan

    def _spam_test(self, job: JobRecord, settings: DrawAndDiscard, weights: int) -> SpamTest:
        """Return limits for the measured number of updates in flight, in steps of a factor of two."""
        # A calibration takes a second, and the number of updates in flight wanders: a step is used until it
        # doubles
        job_id, in_flight = job.job_id, job.in_flight or 0.0
        step = 0 if in_flight < 1 else min(_MOST_IN_FLIGHT, 1 << (round(in_flight) - 1).bit_length())
        with self._calibrating:  # takes a second; one thread does it
            if (job_id, step) not in self._tests:
                self._tests[job_id, step] = SpamTest.calibrate(
                    settings, weights=weights, in_flight=step, randomness=self._randomness
                )
            return self._tests[job_id, step]

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1


async def _in_thread(look_up: Callable[[], _T]) -> _T:
    with database_at_hand("the ad server"):
        try:
            return await run_in_threadpool(look_up)
        except JobRefused:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no such job") from None


def _job_id(request: Request) -> bytes:
    try:
        return bytes.fromhex(request.path_params["job_id"])
    except ValueError:
        raise HTTPException(HTTPStatus.NOT_FOUND, "the job id must be hexadecimal") from None
