import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helper.datasets.sweeping import ORPHAN_S
from helper.ledger.ledger import Ledger
from helper.releases.answering import Call
from helper.releases.queries import Queries
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused, ReportReason
from maskedlark.privacy.accounting import spent
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.update import Phase, UpdateSpec
from maskedlark.reports.upload import SealedShare
from tests.builders import shares_for
from tests.helper.update_parties import UpdateScene, other_content
from tests.update_builders import update_job


def reason_of(error: pytest.ExceptionInfo[JobRefused]) -> JobReason:
    return error.value.reason


def is_spent(scene: UpdateScene, spec: UpdateSpec) -> bool:
    """Whether the task's budget refuses a round."""
    try:
        scene.cores[1].queries.answer(spec, lambda _: b"", Call(caller=None))
    except JobRefused as refusal:
        return refusal.reason is JobReason.BUDGET_EXHAUSTED and "fit this task" in str(refusal)
    return False


def test_a_round_is_the_sum_of_what_devices_sent(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one, vectors = scene.round(), scene.vectors(7)
    dataset = scene.seal_round(one, scene.sealed(one, vectors))
    assert (scene.release(one, dataset) == np.sum(vectors, axis=0)).all()


def test_a_round_is_answered_once_and_after_a_restart_with_the_same_bytes(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path, mechanism="gaussian")
    one = scene.round()
    dataset = scene.seal_round(one, scene.sealed(one, scene.vectors(4)))
    spec = UpdateSpec(dataset_id=dataset, round=one)
    before = [core.queries.answer(spec, lambda _: b"", Call(caller=None)) for core in scene.cores]
    scene.restart()
    after = [core.queries.answer(spec, lambda _: b"", Call(caller=None)) for core in scene.cores]
    assert [one.answer for one in before] == [one.answer for one in after]
    assert [one.spent for one in before] == [one.spent for one in after]


def test_a_round_of_other_weights_is_refused_once_it_was_answered(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    scene.release(one, scene.seal_round(one, scene.sealed(one, scene.vectors(3))))
    again = other_content(one)
    dataset = scene.seal_round(again, scene.sealed(again, scene.vectors(3, seed=1), seed=1), handle=b"i" * 16)
    with pytest.raises(JobRefused) as error:
        scene.release(again, dataset)
    assert reason_of(error) is JobReason.QUERY_CHANGED


def test_a_dataset_of_one_round_answers_no_other(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    dataset = scene.seal_round(one, scene.sealed(one, scene.vectors(3)))
    with pytest.raises(JobRefused) as error:
        scene.release(scene.round(1), dataset)
    assert reason_of(error) is JobReason.DATASET_LOST
    assert (scene.release(one, dataset) != 0).any()


def test_foreign_double_and_damaged_shares_are_dropped_and_the_rest_counts(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one, vectors = scene.round(), scene.vectors(4)
    good = scene.sealed(one, vectors)
    foreign = scene.sealed(scene.round(1), scene.vectors(1, seed=2), seed=2)
    damaged = scene.sealed(one, scene.vectors(1, seed=3), seed=3)[0]
    flipped = bytes([damaged.shares[0].ciphertext[-1] ^ 1])
    broken = SealedShare(
        key_id=damaged.shares[0].key_id, ciphertext=damaged.shares[0].ciphertext[:-1] + flipped
    )
    sent = [*good, *foreign, good[0], replace(damaged, shares=(broken, damaged.shares[1]))]
    _, totals = scene.prepare_round(one, sent)
    assert totals[0].dropped == {ReportReason.NOT_OPENED: 2, ReportReason.DUPLICATE_ID: 1}
    assert totals[1].dropped == {ReportReason.NOT_OPENED: 1, ReportReason.DUPLICATE_ID: 1}
    assert (scene.release(one, scene.seal_round(one, sent)) == np.sum(vectors, axis=0)).all()


def test_junk_that_came_first_under_an_updates_id_keeps_the_update_out_of_no_sum(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one, vectors = scene.round(), scene.vectors(3)
    good = scene.sealed(one, vectors)
    junk = [replace(report, shares=good[index - 1].shares) for index, report in enumerate(good)]
    _, totals = scene.prepare_round(one, [*junk, *good])
    assert [total.dropped for total in totals] == [{ReportReason.NOT_OPENED: 3}] * 2
    assert (scene.release(one, scene.seal_round(one, [*junk, *good])) == np.sum(vectors, axis=0)).all()


def test_a_report_is_in_one_dataset_of_its_task(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    sealed = scene.sealed(one, scene.vectors(3))
    scene.seal_round(one, sealed)
    _, totals = scene.prepare_round(one, sealed, handle=b"k" * 16)
    assert [total.dropped for total in totals] == [{ReportReason.ALREADY_USED: 3}] * 2


def test_fewer_devices_than_k_give_noise_around_zero(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path, min_batch_size=4)
    one = scene.round()
    dataset = scene.seal_round(one, scene.sealed(one, scene.vectors(3)))
    assert not scene.release(one, dataset).any()


def test_all_rounds_of_all_datasets_are_charged_to_the_budget_of_the_task(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path, mechanism="gaussian", epsilon=3.0, collusion_epsilon=5.0)
    job = update_job(scene.task, phases=(Phase(rounds=50, sampling_rate=0.5, noise_multiplier=2.0),))
    answered, told = 0, []
    for index in range(50):
        one = scene.round(index, job=job)
        handle = index.to_bytes(16, "little")
        sealed = scene.sealed(one, scene.vectors(2, seed=index), seed=index)
        spec = UpdateSpec(dataset_id=scene.seal_round(one, sealed, handle), round=one)
        if is_spent(scene, spec):
            break
        told.append(scene.cores[0].queries.answer(spec, lambda _: b"", Call(caller=None)).spent)
        answered += 1
    alone = UpdateSpec(dataset_id=bytes(32), round=scene.round(0, job=job)).charges(scene.task)[0]
    assert 1 < answered < 50
    assert told[-1] == spent([replace(alone, rounds=answered)], scene.task.delta)
    past = spent([replace(alone, rounds=answered + 1)], scene.task.delta)
    assert past.ad_server > 3.0 or past.colluding > 5.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"clip_norm": 2.0}, JobReason.MALFORMED),
        ({"round_index": 3}, JobReason.ROUND_BEYOND_PLAN),
    ],
)
def test_a_round_that_the_task_does_not_allow_is_not_prepared(
    tmp_path: Path, changes: dict[str, float], reason: JobReason
) -> None:
    scene = UpdateScene(tmp_path)
    one = replace(scene.round(), **changes)  # type: ignore[arg-type]
    with pytest.raises(JobRefused) as error:
        scene.cores[0].datasets.prepare_round(scene.task_id, b"h" * 16, canonical.encode(one), None)
    assert reason_of(error) is reason


def test_labels_are_not_asked_of_a_task_of_updates(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    dataset = scene.seal_round(one, scene.sealed(one, scene.vectors(3)))
    with pytest.raises(JobRefused) as error:
        scene.start(scene.job(dataset))
    assert reason_of(error) is JobReason.UNDECLARED


def test_what_was_prepared_is_gone_after_a_restart_and_can_be_prepared_again(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    sealed = scene.sealed(one, scene.vectors(3))
    admitted, _ = scene.prepare_round(one, sealed)
    expected = scene.round_dataset_id(sealed, admitted[0], admitted[0].is_admitted)
    scene.restart()
    with pytest.raises(JobRefused) as error:
        scene.cores[0].datasets.commit(scene.task_id, b"h" * 16, b"\x07", expected, None)
    assert reason_of(error) is JobReason.UNKNOWN_DATASET
    assert scene.seal_round(one, sealed) == expected


def test_a_commit_that_the_ledger_did_not_answer_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = UpdateScene(tmp_path)
    one, vectors = scene.round(), scene.vectors(3)
    sealed = scene.sealed(one, vectors)
    admitted, _ = scene.prepare_round(one, sealed)
    expected = scene.round_dataset_id(sealed, admitted[0], admitted[0].is_admitted)

    def away(*_: object) -> None:
        raise HelperUnavailable("the helper's database does not answer; ask again")

    for core in scene.cores:
        with monkeypatch.context() as during:
            during.setattr(Ledger, "add_dataset", away)
            with pytest.raises(HelperUnavailable):
                core.datasets.commit(scene.task_id, b"h" * 16, b"\x07", expected, None)
        assert core.datasets.commit(scene.task_id, b"h" * 16, b"\x07", expected, None) == 3
    assert (scene.release(one, expected) == np.sum(vectors, axis=0)).all()


def test_empty_chunks_of_a_round_do_not_pile_up(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    encoded = canonical.encode(scene.round())
    with scene.cores[0].datasets.prepare_round(scene.task_id, b"h" * 16, encoded, None) as preparation:
        assert not len(preparation.add([]).is_admitted)
        assert len(preparation._rows) == 0
        assert preparation.finish().received == 0


def test_a_preparation_that_ends_early_leaves_no_file(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    incoming = shares_for(scene.sealed(one, scene.vectors(2)), 0)
    with scene.cores[0].datasets.prepare_round(
        scene.task_id, b"h" * 16, canonical.encode(one), None
    ) as preparation:
        preparation.add(incoming)
    assert not list((tmp_path / "north" / "datasets").iterdir())


@pytest.mark.parametrize("spoil", ["cut", "flip", "rename", "remove"])
@pytest.mark.parametrize("which", [0, 1], ids=["records", "ranks"])
def test_shares_that_were_touched_on_disk_are_lost_and_not_summed(
    tmp_path: Path, spoil: str, which: int
) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    dataset = scene.seal_round(one, scene.sealed(one, scene.vectors(3)))
    path = files_at(scene, dataset)[which]
    content = path.read_bytes()
    match spoil:
        case "cut":
            path.write_bytes(content[:-1])
        case "flip":
            path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
        case "rename":
            other = scene.round(1)
            sealed = scene.sealed(other, scene.vectors(3, seed=4), seed=4)
            path.write_bytes(
                files_at(scene, scene.seal_round(other, sealed, handle=b"j" * 16))[which].read_bytes()
            )
        case "remove":
            path.unlink()
    spec = UpdateSpec(dataset_id=dataset, round=one)
    with pytest.raises(JobRefused) as error:
        scene.cores[1].queries.answer(spec, lambda _: b"", Call(caller=None))
    assert reason_of(error) is JobReason.DATASET_LOST
    assert scene.cores[0].queries.answer(spec, lambda _: b"", Call(caller=None)).answer


def files_at(scene: UpdateScene, dataset: bytes, role: int = 1) -> list[Path]:
    """The files of a dataset of one segment at a helper: records, then ranks."""
    vault = scene.cores[role].datasets.vault
    return [vault._disk.path(one.name) for one in vault._ledger.manifests.of(dataset)]


def test_a_file_of_updates_shows_nothing_and_is_the_owners_only(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    sealed = scene.sealed(one, scene.vectors(3))
    dataset = scene.seal_round(one, sealed)
    for path in [path for role in (0, 1) for path in files_at(scene, dataset, role)]:
        assert path.stat().st_mode & 0o077 == 0
        assert all(report.report_id not in path.read_bytes() for report in sealed)


# --- what an answered round leaves


def held(scene: UpdateScene) -> list[tuple[int, int]]:
    """How many files each helper has, and how many bytes it counts, once what was given up is deleted."""
    for core in scene.cores:
        core.datasets.vault.delete_dropped()
    files = [len(list((party.data / "datasets").iterdir())) for party in scene.parties]
    return [(one, core.quota.num_bytes) for one, core in zip(files, scene.cores, strict=True)]


def test_the_updates_of_an_answered_round_are_deleted_and_the_answer_is_given_again(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    spec = sealed_round(scene, 0)
    waiting = sealed_round(scene, 1)
    assert all(files == 4 for files, _ in held(scene))
    before = [core.queries.answer(spec, lambda _: b"", Call(caller=None)) for core in scene.cores]
    assert all(files == 2 and num_bytes > 0 for files, num_bytes in held(scene))
    scene.restart()
    again = [core.queries.answer(spec, lambda _: b"", Call(caller=None)) for core in scene.cores]
    assert [one.answer for one in again] == [one.answer for one in before]
    assert [len(core.tasks._ledger.manifests.of(waiting.dataset_id)) for core in scene.cores] == [2, 2]
    assert (scene.release(waiting.round, waiting.dataset_id) != 0).any()
    assert held(scene) == [(0, 0), (0, 0)]


def sealed_round(scene: UpdateScene, index: int) -> UpdateSpec:
    one = scene.round(index)
    sealed = scene.sealed(one, scene.vectors(3, seed=index), seed=index)
    return UpdateSpec(dataset_id=scene.seal_round(one, sealed, bytes([index]) * 16), round=one)


def test_rounds_go_on_beyond_a_quota_that_holds_two_of_them(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    sealed_round(scene, 0)
    most = max(num_bytes for _, num_bytes in held(scene))
    scene.restart(max_held_bytes=2 * most)
    job = update_job(scene.task, phases=(Phase(rounds=6, sampling_rate=0.5, noise_multiplier=0.0),))
    for index in range(6):
        one = scene.round(index, job=job)
        sealed = scene.sealed(one, scene.vectors(3, seed=9 + index), seed=9 + index)
        scene.release(one, scene.seal_round(one, sealed, bytes([index]) * 16))
    assert all(num_bytes <= most for _, num_bytes in held(scene))


@pytest.mark.parametrize("is_charged", [False, True])
def test_a_crash_while_a_round_is_charged_leaves_its_updates_or_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_charged: bool
) -> None:
    scene = UpdateScene(tmp_path)
    spec, core, add = sealed_round(scene, 0), scene.cores[0], Ledger.add_query

    def ends(*given: Any) -> bool:
        if is_charged:
            add(*given)
        raise PowerCut

    with monkeypatch.context() as during:
        during.setattr(Ledger, "add_query", ends)
        with pytest.raises(PowerCut):
            core.queries.answer(spec, lambda _: b"", Call(caller=None))
    scene.restart()
    core = scene.cores[0]
    left = core.quota.num_bytes
    assert left > 0
    assert bool(core.tasks._ledger.manifests.of(spec.dataset_id)) is not is_charged
    assert core.queries.answer(spec, lambda _: b"", Call(caller=None)).answer
    scene.parties[0].now = max(time.time(), scene.parties[0].now) + ORPHAN_S
    core.sweeper.sweep()
    assert core.quota.num_bytes == 0


def test_a_call_whose_round_was_answered_meanwhile_gets_that_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other call deletes the updates before this one has read them."""
    scene = UpdateScene(tmp_path, mechanism="gaussian")
    spec, core, compute = sealed_round(scene, 0), scene.cores[0], Queries._compute
    first: list[bytes] = []

    def answered_meanwhile(*given: Any) -> AggregateShare:
        if not first:
            first.append(b"")
            first[:] = [core.queries.answer(spec, lambda _: b"", Call(caller=None)).answer]
            core.datasets.vault.delete_dropped()
        return compute(*given)

    monkeypatch.setattr(Queries, "_compute", answered_meanwhile)
    assert [core.queries.answer(spec, lambda _: b"", Call(caller=None)).answer] == first


class PowerCut(BaseException):
    """The process is gone."""
