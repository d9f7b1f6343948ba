"""A tenant that a helper trusts uses the ids of another one, over real mutual TLS: nothing comes of it.

Each call of the matrix is made twice: by a rival with the ids of a victim, and by its twin, which holds as
much, with ids that nobody ever used. Both get the same answer.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import numpy as np
import pytest
from sqlalchemy import event

from helper.core import HelperCore
from helper.serving.service import HelperService
from maskedlark import canonical
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.job import JobSpec
from maskedlark.releases.kinds import AnyQuery
from maskedlark.releases.query import Axis, Measure, QuerySpec
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.releases.update import UpdateRound, UpdateSpec
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.reports.task import Task
from maskedlark.reports.upload import Report
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.receipts import METADATA_KEY
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import chunks
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.builders import shares_for
from tests.forged import Holder, holder
from tests.helper.parties import MODEL, NUM_VALUES, WEIGHTS, Scene, make_task
from tests.helper.releases.test_evaluation_at_helpers import spec_of
from tests.helper.served import served
from tests.helper.serving.test_helper_service import END, chunk_message, serve
from tests.helper.update_parties import UpdateScene
from tests.measured import SHOP
from tests.patience import HANGS_S
from tests.update_builders import FORM, update_job

VICTIM, RIVAL, TWIN = "https://ads.example", "https://rival.example", "https://twin.example"
HELPER = holder("localhost")
MEASURED = {"measurement": {**SHOP, "min_cell_count": 2}}
COUNT = 12
ROLES = (0, 1)
WITHOUT_NOISE = {"noise_multiplier": 0.0, "threshold_noise_multiplier": 0.0}


@dataclass(frozen=True, kw_only=True)
class Ids:
    """What a tenant names its things by, and others may know."""

    label_task: Task
    update_task: Task
    handle: bytes
    dataset: bytes
    round_dataset: bytes
    job: bytes
    query: bytes
    update_job: bytes

    def update_release(self, index: int) -> bytes:
        """What helpers charge a federated round under."""
        return update_job_round(self.update_task, self.update_job, index).query_id


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All that a caller sees of a call but the receipt of its ledger and random bytes."""

    code: grpc.StatusCode | None
    details: str
    trailing: tuple[tuple[str, str], ...]
    replies: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """An ad server with a task of labels and one of updates, a dataset of each, and both helpers."""

    labels: Scene
    updates: UpdateScene
    stubs: tuple[Any, Any]
    ids: Ids

    def prepare(self, header: pb.PrepareRequest.Header, reports: list[Report], role: int = 0) -> Any:
        requests = [pb.PrepareRequest(header=header), chunk_message(shares_for(reports, role)), END]
        return self.stubs[role].PrepareDataset(iter(requests), timeout=HANGS_S)

    def job(self, **changes: Any) -> JobSpec:
        return self.labels.job(self.ids.dataset, job_id=self.ids.job, rounds=3, **changes)

    def start(self, spec: JobSpec, role: int = 0) -> Any:
        pieces = (pb.StartJobRequest(model=piece) for piece in chunks(MODEL))
        requests = [pb.StartJobRequest(job=canonical.encode(spec)), *pieces]
        return self.stubs[role].StartJob(iter(requests), timeout=HANGS_S)

    def round(self, spec: JobSpec, index: int = 0, role: int = 0) -> Any:
        header = pb.RoundRequest.Header(task_id=spec.task_id, job_id=spec.job_id, round=index)
        requests = [pb.RoundRequest(header=header), pb.RoundRequest(weights=WEIGHTS)]
        return self.stubs[role].RunRound(iter(requests), timeout=HANGS_S)

    def close(self, spec: JobSpec, role: int = 0) -> Any:
        return self.stubs[role].CloseJob(pb.CloseJobRequest(job=canonical.encode(spec)), timeout=HANGS_S)

    def close_lost(self, spec: JobSpec, role: int = 0) -> Any:
        request = pb.CloseJobRequest(task_id=spec.task_id, job_id=spec.job_id)
        return self.stubs[role].CloseJob(request, timeout=HANGS_S)

    def ask(self, spec: AnyQuery, role: int = 0) -> Any:
        requests = [pb.QueryRequest(**{spec.kind: canonical.encode(spec)})]
        if isinstance(spec, EvaluationSpec):
            requests += [pb.QueryRequest(model=piece) for piece in chunks(MODEL)]
        return self.stubs[role].RunQuery(iter(requests), timeout=HANGS_S)

    def commit(self, task_id: bytes, handle: bytes, dataset: bytes, count: int) -> Any:
        chosen = np.packbits(np.ones(count, np.uint8), bitorder="little").tobytes()
        request = pb.CommitRequest(task_id=task_id, handle=handle, chosen=chosen, dataset_id=dataset)
        return self.stubs[0].CommitDataset(request, timeout=HANGS_S)

    def queries(self, ids: Ids, **changes: Any) -> tuple[AnyQuery, ...]:
        """One of each kind, over this tenant's own data unless something is changed."""
        task_id, dataset = (
            changes.get("task_id", self.labels.task_id),
            changes.get("dataset", self.ids.dataset),
        )
        named = {"task_id": task_id, "dataset_id": dataset}
        first, second, third = (ids.query[:-1] + bytes([ids.query[-1] ^ kind]) for kind in range(3))
        counted = {"measures": (Measure(value="count", scale=1),), "group_by": (Axis(key="place", size=3),)}
        found = {"keys": ("place",), "max_codes": 3, "noise_multiplier": 0.0, "delta": 1e-7}
        return (
            canonical.build(
                QuerySpec, {**named, **counted, **WITHOUT_NOISE, "query_id": first, "levels": (1,)}
            ),
            canonical.build(DiscoverySpec, {**named, **found, "query_id": second}),
            replace(spec_of(self.labels, dataset, MODEL), query_id=third, task_id=task_id),
        )


def update_job_round(task: Task, job_id: bytes, index: int) -> UpdateRound:
    job = update_job(task, job_id=job_id)
    return UpdateRound(
        job=job, round_index=index, content_digest=bytes([index]) * 32, clip_norm=task.clip_norm
    )


def reports_of(scene: Scene, seed: int, count: int = COUNT) -> list[Report]:
    features = np.zeros(scene.task.num_features, np.uint8)
    made = [
        Example(features=features, label=1.0, measured=MeasuredValues(keys=(0, n % 3, 0), values=(1, n)))
        for n in range(count)
    ]
    return scene.reports(made, seed)


def updates_of(scene: UpdateScene, one: UpdateRound, seed: int) -> list[Report]:
    return scene.sealed(one, scene.vectors(4, seed), seed)


def outcome(call: Callable[[], Any]) -> Outcome:
    """Make a call, and keep what its caller sees of it."""
    replies: list[Any] = []
    try:
        answered = call()
        for reply in answered if isinstance(answered, Iterable) else (answered,):
            replies.append(visible(reply))
    except grpc.RpcError as error:
        metadata: Any = error.trailing_metadata() or ()
        trailing = ((key, str(value)) for key, value in metadata if key != METADATA_KEY)
        return Outcome(
            code=error.code(),
            details=error.details() or "",
            trailing=tuple(sorted(trailing)),
            replies=tuple(replies),
        )
    return Outcome(code=None, details="", trailing=(), replies=tuple(replies))


def visible(reply: Any) -> Any:
    """A reply without what is random in it."""
    match reply:
        case pb.PrepareReply():
            totals = pb.PrepareReply.Totals()
            totals.CopyFrom(reply.totals)
            totals.ClearField("admitted_digest")
            return reply.is_admitted, totals.SerializeToString(deterministic=True)
        case pb.CommitReply():
            return reply.size
        case pb.StartJobReply() | pb.CloseJobReply():
            return reply.SerializeToString(deterministic=True)
        case pb.QueryReply():
            return reply.spent.SerializeToString(deterministic=True), len(reply.chunk)
        case pb.RoundReply():
            return len(reply.chunk)
        case _:
            return type(reply).__name__


class Site:
    """Both helpers behind TLS, and three tenants that they trust."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.scene = Scene(folder / "scene", **MEASURED)
        holders = {origin: holder(origin, common_name=origin) for origin in (VICTIM, RIVAL, TWIN)}
        trusted = b"".join(one.pem for one in holders.values())
        self._ports = []
        for role in ROLES:
            server, port = serve(self.scene, role, HELPER.files(folder / f"helper {role}", trusted=trusted))
            stack.callback(lambda server: server.stop(None).wait(), server)
            self._ports.append(port)
        self._folder, self._stack = folder, stack
        self.victim, self.rival, self.twin = (
            self._tenant(number, origin, one) for number, (origin, one) in enumerate(holders.items())
        )

    @property
    def cores(self) -> tuple[HelperCore, HelperCore]:
        return self.scene.cores

    def unknown(self) -> Ids:
        """Ids that nobody ever used, in tasks of the victim that no helper knows."""
        known = self.victim.ids
        return Ids(
            label_task=replace(known.label_task, salt=b"?" * 16),
            update_task=replace(known.update_task, salt=b"?" * 16),
            **{
                one.name: bytes(byte ^ 0x55 for byte in getattr(known, one.name))
                for one in fields(Ids)
                if not one.name.endswith("_task")
            },
        )

    def _tenant(self, number: int, origin: str, one: Holder) -> Tenant:
        labels = self.scene.tenant(origin, **MEASURED)
        shared = UpdateScene.__new__(UpdateScene)
        shared.parties, shared.cores = self.scene.parties, self.scene.cores
        updates = shared.tenant(origin)
        job = bytes([0x10 + number]) * 16
        first = update_job_round(updates.task, job, 0)
        dataset = labels.commit(labels.prepare(reports_of(labels, number), handle=bytes([number]) * 16))
        round_dataset = updates.seal_round(first, updates_of(updates, first, number), bytes([number]) * 16)
        tls = one.files(self._folder / f"tenant {number}", trusted=HELPER.pem)
        channels = [self._stack.enter_context(make_channel(f"localhost:{port}", tls)) for port in self._ports]
        north, south = (helper_pb2_grpc.HelperStub(channel) for channel in channels)
        return Tenant(
            labels=labels,
            updates=updates,
            stubs=(north, south),
            ids=Ids(
                label_task=labels.task,
                update_task=updates.task,
                handle=bytes([0x20 + number]) * 16,
                dataset=dataset,
                round_dataset=round_dataset,
                job=job,
                query=bytes([0x30 + number]) * 16,
                update_job=job,
            ),
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def claim(rival: Tenant, ids: Ids, role: int) -> None:
    """Use the ids of somebody else for one's own releases."""
    rival.start(replace(rival.job(), job_id=ids.job), role)
    *queries, evaluation = rival.queries(ids)
    assert isinstance(evaluation, EvaluationSpec)
    rounds = (replace(evaluation, query_id=ids.update_release(index)) for index in range(3))
    for query in (*queries, evaluation, *rounds):
        assert list(rival.ask(query, role))


def trains(victim: Tenant, *, rounds: int = 3) -> None:
    """A tenant's job, query and federated rounds at both helpers, as if it were alone."""
    spec = victim.job()
    for role in ROLES:
        victim.start(spec, role)
    for index in range(rounds):
        check_sum([joined(victim.round(spec, index, role)) for role in ROLES], NUM_VALUES)
    counted, *_ = victim.queries(victim.ids)
    assert len({len(joined(victim.ask(counted, role))) for role in ROLES}) == 1
    scene = victim.updates
    for index in range(rounds):
        one = update_job_round(scene.task, victim.ids.update_job, index)
        dataset = victim.ids.round_dataset
        if index:
            dataset = scene.seal_round(one, updates_of(scene, one, 10 + index))
        release = UpdateSpec(dataset_id=dataset, round=one)
        check_sum([joined(victim.ask(release, role)) for role in ROLES], FORM.length)
    for role in ROLES:
        assert victim.close(spec, role).rounds_answered == rounds


def joined(replies: Iterable[Any]) -> bytes:
    return b"".join(reply.chunk for reply in replies)


def check_sum(answers: list[bytes], length: int) -> None:
    first, second = (AggregateShare.decode(answer, length) for answer in answers)
    combine(first, second)  # refuses answers that do not belong together


@pytest.mark.parametrize("roles", [(0,), (0, 1)], ids=["helper 0", "both helpers"])
def test_ids_that_a_rival_uses_first_are_still_there_for_their_owner(
    site: Site, roles: tuple[int, ...]
) -> None:
    for role in roles:
        claim(site.rival, site.victim.ids, role)
    trains(site.victim)


def at_work(victim: Tenant) -> JobSpec:
    """Start a job, have a round, queries and a federated round answered, and prepare shares."""
    spec = victim.job()
    for role in ROLES:
        victim.start(spec, role)
        for release in (*victim.queries(victim.ids), victim_release(victim)):
            assert list(victim.ask(release, role))
        assert list(victim.round(spec, 0, role))
        header = pb.PrepareRequest.Header(task_id=spec.task_id, handle=victim.ids.handle)
        assert list(victim.prepare(header, reports_of(victim.labels, 20), role))
    return spec


def victim_release(victim: Tenant) -> UpdateSpec:
    one = update_job_round(victim.updates.task, victim.ids.update_job, 0)
    return UpdateSpec(dataset_id=victim.ids.round_dataset, round=one)


Attack = Callable[[Tenant, Ids], Any]
"""One call of a tenant that names its own things but for some of other ids."""


def header_of(tenant: Tenant, task_id: bytes = b"", handle: bytes = b"x" * 16) -> pb.PrepareRequest.Header:
    return pb.PrepareRequest.Header(task_id=task_id or tenant.labels.task_id, handle=handle)


def prepare_a_round(tenant: Tenant, one: UpdateRound, task_id: bytes = b"") -> Any:
    scene = tenant.updates
    own = update_job_round(scene.task, tenant.ids.update_job, 1)
    header = pb.PrepareRequest.Header(
        task_id=task_id or scene.task_id, handle=b"x" * 16, update_round=canonical.encode(one)
    )
    return tenant.prepare(header, updates_of(scene, own, 30))


def commit_as(tenant: Tenant, ids: Ids, parts: tuple[str, ...]) -> Any:
    """Commit what was just prepared, but for some parts, which are of other ids."""
    list(tenant.prepare(header_of(tenant, handle=b"y" * 16), reports_of(tenant.labels, 40)))
    return tenant.commit(
        ids.label_task.task_id if "task" in parts else tenant.labels.task_id,
        ids.handle if "handle" in parts else b"y" * 16,
        ids.dataset if "dataset" in parts else bytes(32),
        COUNT,
    )


def with_job(call: Callable[[Tenant, JobSpec], Any], tenant: Tenant, ids: Ids, parts: tuple[str, ...]) -> Any:
    spec = replace(
        tenant.job(),
        task_id=ids.label_task.task_id if "task" in parts else tenant.labels.task_id,
        dataset_id=ids.dataset if "dataset" in parts else tenant.ids.dataset,
        job_id=ids.job if "job" in parts else tenant.ids.job,
    )
    return call(tenant, spec)


def start_and_run(tenant: Tenant, spec: JobSpec) -> Any:
    tenant.start(spec)
    return tenant.round(spec)


def ask_as(tenant: Tenant, ids: Ids, kind: int, parts: tuple[str, ...]) -> Any:
    changes: dict[str, Any] = {"task_id": ids.label_task.task_id} if "task" in parts else {}
    changes |= {"dataset": ids.dataset} if "dataset" in parts else {}
    return tenant.ask(tenant.queries(ids if "query" in parts else tenant.ids, **changes)[kind])


def release_as(tenant: Tenant, ids: Ids, parts: tuple[str, ...]) -> Any:
    one = update_job_round(
        ids.update_task if "task" in parts else tenant.updates.task,
        ids.update_job if "job" in parts else tenant.ids.update_job,
        0,
    )
    dataset = ids.round_dataset if "dataset" in parts else tenant.ids.round_dataset
    return tenant.ask(UpdateSpec(dataset_id=dataset, round=one))


def register_task_of(tenant: Tenant, ids: Ids) -> Any:
    request = pb.RegisterTaskRequest(task=canonical.encode(ids.label_task))
    return tenant.stubs[0].RegisterTask(request, timeout=HANGS_S)


def attacks() -> Iterator[tuple[str, Attack]]:
    """Every call of the service, with every part that may name something of another tenant."""

    def some(*parts: str) -> list[tuple[str, ...]]:
        return [*((part,) for part in parts), parts[1:], parts]

    yield "status", lambda tenant, ids: tenant.stubs[0].GetStatus(pb.StatusRequest(), timeout=HANGS_S)
    yield "register", register_task_of
    yield (
        "prepare: task",
        lambda tenant, ids: tenant.prepare(
            header_of(tenant, ids.label_task.task_id), reports_of(tenant.labels, 30)
        ),
    )
    yield (
        "prepare: task, handle",
        lambda tenant, ids: tenant.prepare(
            header_of(tenant, ids.label_task.task_id, ids.handle), reports_of(tenant.labels, 30)
        ),
    )
    yield (
        "prepare: handle",
        lambda tenant, ids: tenant.prepare(
            header_of(tenant, handle=ids.handle), reports_of(tenant.labels, 30)
        ),
    )
    yield (
        "prepare a round: task",
        lambda tenant, ids: prepare_a_round(
            tenant, update_job_round(ids.update_task, ids.update_job, 1), ids.update_task.task_id
        ),
    )
    yield (
        "prepare a round: its task",
        lambda tenant, ids: prepare_a_round(tenant, update_job_round(ids.update_task, ids.update_job, 1)),
    )
    yield (
        "prepare a round: job",
        lambda tenant, ids: prepare_a_round(tenant, update_job_round(tenant.updates.task, ids.update_job, 1)),
    )
    for parts in some("task", "handle", "dataset"):
        yield f"commit: {', '.join(parts)}", partial(commit_as, parts=parts)
    yield (
        "statements: task",
        lambda tenant, ids: list(
            tenant.stubs[0].GetStatements(
                pb.StatementsRequest(task_id=ids.label_task.task_id), timeout=HANGS_S
            )
        ),
    )
    for name, call in (
        ("start", Tenant.start),
        ("round", start_and_run),
        ("round, not started", Tenant.round),
        ("close", Tenant.close),
        ("close lost", Tenant.close_lost),
    ):
        for parts in some("task", "dataset", "job"):
            yield f"{name}: {', '.join(parts)}", partial(with_job, call, parts=parts)
    for kind, name in enumerate(("query", "discovery", "evaluation")):
        for parts in some("task", "dataset", "query"):
            yield f"{name}: {', '.join(parts)}", partial(ask_as, kind=kind, parts=parts)
    for parts in some("task", "dataset", "job"):
        yield f"update: {', '.join(parts)}", partial(release_as, parts=parts)


ATTACKS = dict(attacks())


def test_the_matrix_has_every_call_of_the_service() -> None:
    calls = {method.name for method in pb.DESCRIPTOR.services_by_name["Helper"].methods}
    attacked = {
        "GetStatus": "status",
        "RegisterTask": "register",
        "PrepareDataset": "prepare",
        "CommitDataset": "commit",
        "StartJob": "start",
        "RunRound": "round",
        "CloseJob": "close",
        "RunQuery": "query",
        "GetStatements": "statements",
    }
    assert set(attacked) == calls
    assert set(attacked.values()) <= {name.partition(":")[0] for name in ATTACKS}


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        site = Site(tmp_path_factory.mktemp("site"), stack)
        at_work(site.victim)
        yield site


def held(site: Site) -> list[Any]:
    """All that the helpers keep of the victim."""
    victim, spec = site.victim, site.victim.job()
    return [
        (
            core._ledger.reservations(victim.ids.dataset),
            core._ledger.reservations(victim.ids.round_dataset),
            joined(victim.round(spec, 0, role)),
            *(
                joined(victim.ask(one, role))
                for one in (victim.queries(victim.ids)[0], victim_release(victim))
            ),
        )
        for role, core in enumerate(site.cores)
    ]


@contextmanager
def statements(site: Site) -> Iterator[list[str]]:
    """What the ledger of helper 0 is asked in the block: the steps of a call that take the most time."""
    asked: list[str] = []

    def keep(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    engine = site.cores[0]._ledger.engine
    event.listen(engine, "before_cursor_execute", keep)
    try:
        yield asked
    finally:
        event.remove(engine, "before_cursor_execute", keep)


@pytest.mark.parametrize("name", ATTACKS)
def test_ids_of_a_victim_tell_and_change_no_more_than_ids_that_nobody_used(busy: Site, name: str) -> None:
    before = held(busy)
    attack = ATTACKS[name]
    with statements(busy) as steps_of_twin:
        unknown = outcome(lambda: attack(busy.twin, busy.unknown()))
    with statements(busy) as steps_of_rival:
        assert outcome(lambda: attack(busy.rival, busy.victim.ids)) == unknown
    assert steps_of_rival == steps_of_twin
    assert held(busy) == before


def test_after_all_attacks_the_victim_goes_on(busy: Site) -> None:
    victim, spec = busy.victim, busy.victim.job()
    for attack in ATTACKS.values():
        outcome(partial(attack, busy.rival, victim.ids))
    for index in (1, 2):
        check_sum([joined(victim.round(spec, index, role)) for role in ROLES], NUM_VALUES)
    assert [victim.close(spec, role).rounds_answered for role in ROLES] == [3, 3]
    prepared = reports_of(victim.labels, 20)
    expected = victim.labels.id_of(prepared, np.ones(COUNT, np.bool_))
    assert victim.commit(spec.task_id, victim.ids.handle, expected, COUNT).size == COUNT


def let_in(stub: Any, task_id: bytes, is_over: Event) -> list[Any]:
    """Open a preparation that says nothing more until it is over; the call if it gets a place."""

    def requests() -> Iterator[pb.PrepareRequest]:
        yield pb.PrepareRequest(header=pb.PrepareRequest.Header(task_id=task_id, handle=b"h" * 16))
        yield chunk_message([])
        is_over.wait(HANGS_S)

    call = stub.PrepareDataset(requests(), timeout=HANGS_S)
    try:
        next(call)
    except grpc.RpcError:
        return [] if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else [call.code()]
    return [call]


def test_certificates_for_every_choice_of_a_hosts_names_share_half_of_the_heavy_calls(tmp_path: Path) -> None:
    """By the set of their names they were three callers, who got 9 of the 12 places here."""
    scene = Scene(tmp_path / "scene")
    task = make_task(scene.parties, origin=RIVAL)
    scene.register(task)
    authority, victim = holder(common_name="authority", is_authority=True), holder(VICTIM)
    names = (RIVAL, "rival.example")
    files = HELPER.files(tmp_path / "helper", trusted=authority.pem + victim.pem)
    files.authority_names.write_text(f"{authority.fingerprint} {' '.join(names)}")
    certified = [victim, *(holder(*some, issuer=authority) for some in (names[:1], names[1:], names))]
    service, is_over = HelperService(scene.cores[0], admission=FairQuota(12)), Event()
    with ExitStack() as stack:
        port = stack.enter_context(served(service, tls=files, threads=40)).rpartition(":")[2]
        stack.callback(is_over.set)
        ours, *theirs = (
            helper_pb2_grpc.HelperStub(
                stack.enter_context(
                    make_channel(f"localhost:{port}", one.files(tmp_path / str(at), trusted=HELPER.pem))
                )
            )
            for at, one in enumerate(certified)
        )
        held = [call for _ in range(12) for stub in theirs for call in let_in(stub, task.task_id, is_over)]
        assert len(held) == 6
        held += [call for _ in range(12) for call in let_in(ours, scene.task_id, is_over)]
        assert len(held) == 6 + 3
