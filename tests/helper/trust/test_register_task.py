from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from maskedlark import canonical
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.reports.task import HelperIdentity, Task
from tests.builders import settings
from tests.helper.parties import FLOORS, Party, Scene, make_task
from tests.refusals import refused


def refusal(scene: Scene, task: Task, caller: frozenset[str] | None = None) -> JobReason:
    with pytest.raises(JobRefused) as refused:
        scene.cores[0].tasks.register(canonical.encode(task), caller)
    assert scene.cores[0].status().counts.tasks == 1  # the scene's own
    return refused.value.reason


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_both_helpers_sign_a_task_that_browsers_then_accept(scene: Scene) -> None:
    scene.bundle.verify()


def test_registering_again_gives_the_same_signature_also_after_a_restart(scene: Scene) -> None:
    encoded = canonical.encode(scene.task)
    scene.restart()
    assert scene.cores[0].tasks.register(encoded, None) == scene.bundle.signatures[0]
    assert scene.cores[0].status().counts.tasks == 1


def test_each_helper_finds_its_role_by_its_key(scene: Scene) -> None:
    roles = [core.tasks.serve(scene.task_id, None).role for core in scene.cores]
    assert roles == [0, 1]


def test_a_task_of_two_other_helpers_is_refused(scene: Scene, tmp_path: Path) -> None:
    others = (Party(data=tmp_path / "east"), Party(data=tmp_path / "west"))
    assert refusal(scene, make_task(others)) is JobReason.TASK_REFUSED


def test_a_task_below_the_floors_is_refused(scene: Scene) -> None:
    assert refusal(scene, make_task(scene.parties, min_batch_size=1)) is JobReason.TASK_REFUSED


def test_an_expired_task_is_refused(scene: Scene) -> None:
    scene.parties[0].now = scene.task.expires_at
    other = make_task(scene.parties, name="late")
    assert refusal(scene, other) is JobReason.TASK_EXPIRED


def test_a_task_with_another_agreement_key_of_ours_is_refused(scene: Scene) -> None:
    ours, theirs = scene.parties[0].keys.identity, scene.parties[1].keys.identity
    forged = replace(ours, agreement_key=X25519PrivateKey.generate().public_key().public_bytes_raw())
    with pytest.raises(InvalidTask, match="agreement key"):
        scene.cores[0].tasks.register(
            canonical.encode(canonical.build(Task, settings(helpers=(forged, theirs)))), None
        )


def test_a_task_whose_other_helper_has_a_weak_agreement_key_is_refused(scene: Scene) -> None:
    ours = scene.parties[0].keys.identity
    weak = HelperIdentity(name="weak", verify_key=bytes(32), agreement_key=bytes(32))
    with pytest.raises(InvalidTask, match="not a usable"):
        scene.cores[0].tasks.register(
            canonical.encode(canonical.build(Task, settings(helpers=(ours, weak)))), None
        )


@pytest.mark.parametrize("encoded", [b"", b"{}", b"\xff", b"[]", b"x" * 70_000])
def test_bytes_that_are_no_task_are_refused(scene: Scene, encoded: bytes) -> None:
    with pytest.raises(InvalidTask):
        scene.cores[0].tasks.register(encoded, None)


@pytest.mark.parametrize("names", [{"https://ads.example"}, {"ads.example"}, {"other", "ads.example"}])
def test_the_origin_that_a_task_names_is_served(scene: Scene, names: set[str]) -> None:
    caller = frozenset(names)
    scene.cores[0].tasks.register(canonical.encode(scene.task), caller)
    assert scene.cores[0].tasks.serve(scene.task_id, caller).task == scene.task


@pytest.mark.parametrize(
    "names", [set(), {"https://other.example"}, {"example"}, {"ads.example.evil"}, {"*.example"}, {""}]
)
def test_no_other_origin_is_served(scene: Scene, names: set[str]) -> None:
    caller = frozenset(names)
    assert refusal(scene, scene.task, caller) is JobReason.UNAUTHORIZED
    with refused(JobReason.UNKNOWN_TASK):
        scene.cores[0].tasks.serve(scene.task_id, caller)


@pytest.mark.parametrize("origin", ["https://[", "ads", "//", "https://ads.example\\\\@rival.example"])
def test_an_origin_that_browsers_spell_otherwise_is_not_signed(scene: Scene, origin: str) -> None:
    good = canonical.encode(scene.task)
    encoded = good.replace(b'"https://ads.example"', b'"%s"' % origin.encode())
    assert encoded != good
    with pytest.raises(InvalidTask, match="origin"):
        scene.cores[0].tasks.register(encoded, frozenset({origin, "rival.example"}))


def test_an_unknown_task_is_not_served(scene: Scene) -> None:
    with refused(JobReason.UNKNOWN_TASK):
        scene.cores[0].tasks.serve(b"?" * 32, None)


def test_a_task_with_a_helper_that_the_operator_does_not_name_is_refused(
    scene: Scene, tmp_path: Path
) -> None:
    scene.parties[0].floors = replace(FLOORS, peers=frozenset({scene.parties[1].keys.identity.fingerprint}))
    scene.restart()
    scene.register(make_task(scene.parties, name="with the named one"))
    stranger = make_task((scene.parties[0], Party(data=tmp_path / "stranger")))
    with refused(JobReason.TASK_REFUSED, "--peer"):
        scene.cores[0].tasks.register(canonical.encode(stranger), None)
    assert scene.cores[0].status().counts.tasks == 2


@pytest.mark.parametrize(
    "change", [{"is_noise_optional": False}, {"min_batch_size": 3}, {"peers": frozenset({"0" * 64})}]
)
def test_floors_raised_after_a_task_was_signed_stop_it(scene: Scene, change: dict[str, Any]) -> None:
    dataset = scene.seal()
    spec = scene.job(dataset)
    scene.start(spec)
    scene.parties[0].floors = replace(FLOORS, **change)
    scene.restart()
    with refused(JobReason.TASK_REFUSED):
        scene.answer(0, spec, 0)
    assert scene.cores[0].status().counts.rounds_answered == 0
