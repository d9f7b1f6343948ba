"""What a helper says of its releases is what its ledger charged, and nobody else can say it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from helper.core import HelperCore
from helper.ledger.records import Reservation, key_of
from helper.ledger.release_history import ChargedRelease, ReleaseHistory
from helper.ledger.spending import cost
from helper.trust.keys import HelperKeys
from maskedlark import canonical
from maskedlark.canonical import decode
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.privacy.clip import Norm
from maskedlark.privacy.mechanism import Mechanism, NoiseDivision
from maskedlark.releases.statement import (
    MAX_EVIDENCE_BYTES,
    Evidence,
    ReleaseStatement,
    SignedStatement,
)
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import PrivacyUnit
from tests.helper.parties import ASKED, Scene
from tests.helper.releases.test_queries import Shop, noise
from tests.refusals import refused


def gaussian_scene(folder: Path) -> Scene:
    return Scene(
        folder, mechanism=Mechanism.GAUSSIAN, norm=Norm.L2, epsilon=50.0, collusion_epsilon=90.0, delta=1e-5
    )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return gaussian_scene(tmp_path)


def said(core: HelperCore, scene: Scene) -> list[SignedStatement]:
    return list(core.statements.of_task(scene.task_id, ASKED))


def evidence_of(scene: Scene) -> list[Evidence]:
    both = zip(*(said(core, scene) for core in scene.cores), strict=True)
    return [
        Evidence(task=scene.task, task_signatures=scene.bundle.signatures, statements=pair) for pair in both
    ]


def two_jobs(scene: Scene) -> tuple[Any, Any]:
    dataset = scene.seal()
    first, second = (scene.job(dataset, job_id=name * 16, noise_multiplier=2.0) for name in (b"1", b"2"))
    for job in (first, second):
        scene.start(job)
    scene.run(first, 0)
    scene.run(second, 0)
    scene.run(first, 1)
    for core in scene.cores:
        core.jobs.close(canonical.encode(first), None)
    return first, second


def test_a_statement_says_what_was_spent_before_and_after(scene: Scene) -> None:
    first, second = two_jobs(scene)

    def after(*charged: tuple[Any, int]) -> tuple[float, float]:
        spent = cost(scene.task, [Reservation(spec=job, rounds=rounds) for job, rounds in charged])
        return spent.ad_server, spent.colluding

    statements = [one.statement for one in said(scene.cores[0], scene)]
    told = [
        (
            one.release_id,
            one.answers,
            one.is_final,
            (one.epsilon_before, one.collusion_epsilon_before),
            (one.epsilon_after, one.collusion_epsilon_after),
        )
        for one in statements
    ]
    assert told == [
        (second.job_id, 1, False, after((first, 1)), after((first, 1), (second, 1))),
        (first.job_id, 2, True, (0.0, 0.0), after((first, 2), (second, 1))),
    ]
    one = statements[1]
    assert (one.mechanism, one.noise_multiplier, one.min_batch_size) == (
        scene.task.mechanism,
        2.0,
        scene.task.min_batch_size,
    )
    assert one.numerics is not None
    entry = scene.cores[0].ledger.round(key_of(first), 1)
    assert entry is not None


def test_a_digest_is_of_the_answers_that_a_release_had_and_in_their_order(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that is answered while a statement is made is none of its."""
    job = scene.job(scene.seal(), rounds=3, noise_multiplier=2.0)
    scene.start(job)
    history, answers = ReleaseHistory(scene.cores[0].ledger.engine), list[bytes]()
    before: list[ChargedRelease] = []
    for index in range(3):
        scene.run(job, index)
        (now,) = history.of_task(scene.task_id)
        before.append(now)
        answers.append(bytes.fromhex(history.entry(now.last).subject["answer"]))
    assert [one.answers for one in before] == [1, 2, 3]
    assert [one.is_final for one in before] == [False, False, True]
    assert len({one.first for one in before}) == 1
    for one in before:
        assert history.answers_digest(one) == sha256(b"".join(answers[: one.answers])).digest()
    monkeypatch.setattr("helper.ledger.release_history._PAGE", 2)
    asked: list[None] = []
    history.answers_digest(before[2], lambda: asked.append(None))
    assert len(asked) == 2  # before the first of each page
    stored = scene.cores[0].ledger.round(key_of(job), 2)
    assert stored is not None
    assert stored.answer is not None
    assert sha256(stored.answer).digest() == answers[2]


@pytest.mark.parametrize("unit", PrivacyUnit)
def test_interleaved_jobs_over_two_datasets_say_what_each_budget_had_spent(
    tmp_path: Path, unit: PrivacyUnit
) -> None:
    scene = Scene(
        tmp_path,
        unit=unit.value,
        mechanism=Mechanism.GAUSSIAN,
        norm=Norm.L2,
        epsilon=50.0,
        collusion_epsilon=90.0,
    )
    datasets = [scene.seal(seed=number) for number in range(2)]
    jobs = [
        scene.job(datasets[number % 2], job_id=bytes([number]) * 16, rounds=3, noise_multiplier=2.0 + number)
        for number in range(4)
    ]
    for job in jobs:
        scene.start(job)
    answered = [0, 1, 2, 0, 3, 1, 0, 2]
    for place, number in enumerate(answered):
        scene.run(jobs[number], answered[:place].count(number))

    def spent(number: int, until: int) -> float:
        together = [
            Reservation(spec=job, rounds=answered[:until].count(place))
            for place, job in enumerate(jobs)
            if unit is PrivacyUnit.USER or job.dataset_id == jobs[number].dataset_id
        ]
        return cost(scene.task, [one for one in together if one.rounds]).ad_server

    last = {number: place for place, number in enumerate(answered)}
    told = [one.statement for one in said(scene.cores[0], scene)]
    assert [(one.release_id, one.is_final, one.epsilon_before, one.epsilon_after) for one in told] == [
        (
            jobs[number].job_id,
            number == 0,  # the only one whose planned rounds are all answered
            spent(number, answered.index(number)),
            spent(number, place + 1),
        )
        for number, place in sorted(last.items(), key=lambda item: item[1])
    ]


def test_a_call_that_ends_early_leaves_what_was_made_to_the_next_one(scene: Scene) -> None:
    two_jobs(scene)
    signed: list[bytes] = []
    core = scene.cores[0]

    def sign(statement: ReleaseStatement) -> SignedStatement:
        signed.append(statement.release_id)
        return core.statements.sign(statement)

    statements = replace(core.statements, sign=sign)
    begun = statements.of_task(scene.task_id, ASKED)
    first = next(begun)
    assert signed == [b"2" * 16]
    assert [*statements.of_task(scene.task_id, ASKED)] == said(core, scene)
    assert signed == [b"2" * 16, b"1" * 16]
    assert [first, *begun] == said(core, scene)
    assert signed == [b"2" * 16, b"1" * 16]  # what another call made meanwhile is not made again


def test_a_caller_that_has_gone_ends_the_work(scene: Scene) -> None:
    two_jobs(scene)

    def gone() -> None:
        raise JobRefused(JobReason.CANCELLED, "gone")

    with refused(JobReason.CANCELLED):
        next(scene.cores[0].statements.of_task(scene.task_id, replace(ASKED, check_awaited=gone)))


def test_statements_are_the_same_bytes_each_time_and_after_a_restart(scene: Scene) -> None:
    two_jobs(scene)
    before = evidence_of(scene)
    assert evidence_of(scene) == before
    scene.restart()
    assert [one.encode() for one in evidence_of(scene)] == [one.encode() for one in before]
    for one in before:
        assert Evidence.read(one.encode() + b"\n") == one
        assert one.is_within_budget
        assert [each.statement.role for each in one.statements] == [0, 1]


def test_a_helper_says_nothing_of_anothers_task_and_of_what_it_did_not_answer(scene: Scene) -> None:
    two_jobs(scene)
    with refused(JobReason.UNKNOWN_TASK):
        list(
            scene.cores[0].statements.of_task(
                scene.task_id, replace(ASKED, caller=frozenset({"https://other.example"}))
            )
        )
    other = scene.tenant("https://other.example")
    assert said(scene.cores[0], other) == []


@dataclass(frozen=True)
class Shown:
    """Evidence of a job and of another one, and the keys of both helpers."""

    one: Evidence
    other: Evidence
    keys: tuple[HelperKeys, HelperKeys]

    def saying(self, role: int, **changes: Any) -> Evidence:
        """Return evidence of the first in which a helper says something else, under its signature."""
        said = list(self.one.statements)
        said[role] = self.keys[role].sign_statement(replace(said[role].statement, **changes))
        return replace(self.one, statements=tuple(said))


def with_statement(one: Evidence, **changes: Any) -> Evidence:
    signed = one.statements[0]
    changed = replace(signed, statement=replace(signed.statement, **changes))
    return replace(one, statements=(changed, *one.statements[1:]))


FORGED: dict[str, tuple[str, Callable[[Evidence, Evidence], Evidence]]] = {
    "a smaller epsilon": ("did not sign", lambda one, _: with_statement(one, epsilon_after=0.01)),
    "fewer answers": ("did not sign", lambda one, _: with_statement(one, answers=1)),
    "another time": ("did not sign", lambda one, _: with_statement(one, at=1)),
    "another helper's": (
        "is another helper's",
        lambda one, _: replace(
            one,
            statements=(replace(one.statements[1], statement=replace(one.statements[1].statement, role=0)),),
        ),
    ),
    "another helper's key": (
        "is another helper's",
        lambda one, _: with_statement(one, helper=one.statements[1].statement.helper),
    ),
    "another release's signature": (
        "did not sign",
        lambda one, other: replace(
            one, statements=(replace(one.statements[0], signature=other.statements[0].signature),)
        ),
    ),
    "two releases as one": (
        "of different releases: release_id differs",
        lambda one, other: replace(one, statements=(one.statements[0], other.statements[1])),
    ),
    "one helper's twice": (
        "of role 0 and role 1",
        lambda one, _: replace(one, statements=(one.statements[0], one.statements[0])),
    ),
    "the roles swapped": (
        "of role 0 and role 1",
        lambda one, _: replace(one, statements=one.statements[::-1]),
    ),
    "another task": ("signature", lambda one, _: replace(one, task=replace(one.task, epsilon=1e6))),
    "a task that one helper signed": (
        "signature",
        lambda one, _: replace(one, task_signatures=(one.task_signatures[0], one.task_signatures[0])),
    ),
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """What two jobs leave to show: nothing changes it."""
    scene = gaussian_scene(tmp_path_factory.mktemp("shown"))
    two_jobs(scene)
    other, one = evidence_of(scene)
    return Shown(one=one, other=other, keys=(scene.parties[0].keys, scene.parties[1].keys))


def refuse(forged: Evidence, why: str) -> None:
    with pytest.raises(InvalidTask, match=why):
        forged.verify()
    with pytest.raises(InvalidTask, match=why):
        Evidence.read(forged.encode())


@pytest.mark.parametrize("how", FORGED)
def test_forged_evidence_is_refused(shown: Shown, how: str) -> None:
    why, forge = FORGED[how]
    shown.one.verify()
    refuse(forge(shown.one, shown.other), why)


CONTRADICTIONS: list[tuple[str, Any, str]] = [
    ("task_id", bytes(32), "contradicts the task's settings"),
    ("mechanism", Mechanism.LAPLACE, "contradicts the task's settings"),
    ("noise", NoiseDivision.SPLIT, "contradicts the task's settings"),
    ("min_batch_size", 1_000, "contradicts the task's settings"),
    ("delta", 1e-9, "contradicts the task's settings"),
    ("kind", "jobs", "kind is 'jobs': expected one of discovery, evaluation, job, query, update"),
    ("epsilon_before", None, "gives no epsilon"),
    ("epsilon_after", None, "gives no epsilon"),
]


@pytest.mark.parametrize("role", [0, 1])
@pytest.mark.parametrize(
    ("name", "value", "why"), CONTRADICTIONS, ids=[name for name, _, _ in CONTRADICTIONS]
)
def test_a_helper_that_signs_what_contradicts_its_task_is_refused(
    shown: Shown, role: int, name: str, value: object, why: str
) -> None:
    assert getattr(shown.one.statements[role].statement, name) != value
    refuse(shown.saying(role, **{name: value}), why)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataset_id", bytes(32)),
        ("kind", "query"),
        ("release_id", bytes(16)),
        ("spec", bytes(32)),
        ("noise_multiplier", 2.5),
    ],
)
def test_two_helpers_that_sign_of_different_releases_are_refused(
    shown: Shown, name: str, value: object
) -> None:
    refuse(shown.saying(1, **{name: value}), f"of different releases: {name} differs")
    alone = replace(shown.one, statements=shown.saying(1, **{name: value}).statements[1:])
    alone.verify()


def test_what_helpers_say_of_time_and_of_epsilon_may_differ(shown: Shown) -> None:
    shown.saying(1, at=7, epsilon_after=60.0, answers=1, is_final=False, numerics=None).verify()


@pytest.mark.parametrize("role", [0, 1])
@pytest.mark.parametrize("name", ["epsilon_after", "collusion_epsilon_after"])
def test_what_was_spent_is_held_against_both_budgets_of_both_helpers(
    shown: Shown, role: int, name: str
) -> None:
    budget = getattr(shown.one.task, name.removesuffix("_after"))
    assert shown.saying(role, **{name: budget}).is_within_budget
    assert not shown.saying(role, **{name: math.nextafter(budget, math.inf)}).is_within_budget
    assert not shown.saying(role, **{name: None}).is_within_budget
    for other in ("epsilon_before", "collusion_epsilon_before"):
        assert shown.saying(role, **{other: 2 * budget}).is_within_budget


def test_no_more_than_a_file_of_evidence_may_take_is_read(shown: Shown) -> None:
    encoded = shown.one.encode()
    assert Evidence.read(b"\n" + encoded + b" \n") == shown.one
    with pytest.raises(InvalidTask, match=str(MAX_EVIDENCE_BYTES)):
        Evidence.read(encoded + b"x" * MAX_EVIDENCE_BYTES)
    assert MAX_EVIDENCE_BYTES == 1 << 20


def test_a_statement_of_a_helper_whom_the_task_does_not_name_is_refused(tmp_path: Path, scene: Scene) -> None:
    two_jobs(scene)
    one = evidence_of(scene)[0]
    stranger = Scene(tmp_path / "others").parties[0].keys
    for claimed in (stranger.identity.verify_key, one.task.helpers[0].verify_key):
        theirs = stranger.sign_statement(replace(one.statements[0].statement, helper=claimed))
        with pytest.raises(InvalidTask):
            replace(one, statements=(theirs,)).verify()


def test_the_signature_of_a_task_is_none_of_a_statement(scene: Scene) -> None:
    two_jobs(scene)
    one = evidence_of(scene)[0]
    signed = one.statements[0]
    keys = scene.parties[0].keys
    as_task = keys.sign_task(scene.task)
    assert scene.task.signing_bytes()[:20] not in canonical.encode(signed.statement)
    with pytest.raises(InvalidTask):
        replace(one, statements=(replace(signed, signature=as_task),)).verify()
    assert decode(Task, canonical.encode(scene.task)) == one.task


def test_a_query_has_a_statement_too(tmp_path: Path) -> None:
    shop = Shop(tmp_path, mechanism=Mechanism.GAUSSIAN, norm=Norm.L2, epsilon=50.0, collusion_epsilon=90.0)
    spec = noise(shop.query(), 3.0)
    answered = [shop.ask(role, spec) for role in (0, 1)]
    (one,) = evidence_of(shop)
    one.verify()
    statement = one.statements[0].statement
    assert (statement.kind, statement.answers, statement.is_final, statement.numerics) == (
        "query", 1, True, None
    )  # fmt: skip
    assert (statement.epsilon_before, statement.epsilon_after) == (0.0, answered[0].spent.ad_server)
