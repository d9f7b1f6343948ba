from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helper.ledger.ledger import Ledger
from helper.releases.answering import Call
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused, ReportReason
from maskedlark.privacy.accounting import spent
from maskedlark.releases.update import UpdateSpec
from maskedlark.releases.update_job import Phase
from maskedlark.reports.upload import SealedShare
from tests.builders import shares_for
from tests.helper.datasets.test_sealing_a_dataset import Untouched
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
        scene.cores[0].updates.prepare(scene.task_id, b"h" * 16, canonical.encode(one), None)
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
        scene.cores[0].updates.commit(scene.task_id, b"h" * 16, b"\x07", expected, None)
    assert reason_of(error) is JobReason.UNKNOWN_DATASET
    assert not list(tmp_path.rglob("*.preparing"))
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
                core.updates.commit(scene.task_id, b"h" * 16, b"\x07", expected, None)
        assert core.updates.commit(scene.task_id, b"h" * 16, b"\x07", expected, None) == 3
    assert (scene.release(one, expected) == np.sum(vectors, axis=0)).all()


def test_empty_chunks_of_a_round_do_not_pile_up(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    encoded = canonical.encode(scene.round())
    with scene.cores[0].updates.prepare(scene.task_id, b"h" * 16, encoded, None) as preparation:
        assert not len(preparation.add([]).is_admitted)
        assert len(preparation._rows) == 0
        assert preparation.finish().received == 0


def test_a_preparation_that_ends_early_leaves_no_file(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    incoming = shares_for(scene.sealed(one, scene.vectors(2)), 0)
    with scene.cores[0].updates.prepare(scene.task_id, b"h" * 16, canonical.encode(one), None) as preparation:
        preparation.add(incoming)
    assert not list(tmp_path.rglob("*.preparing"))


@pytest.mark.parametrize("spoil", ["cut", "flip", "rename", "remove"])
def test_shares_that_were_touched_on_disk_are_lost_and_not_summed(tmp_path: Path, spoil: str) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    dataset = scene.seal_round(one, scene.sealed(one, scene.vectors(3)))
    (path,) = (tmp_path / "south").rglob("*.updates")
    content = path.read_bytes()
    match spoil:
        case "cut":
            path.write_bytes(content[:-1])
        case "flip":
            path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
        case "rename":
            other = scene.round(1)
            scene.seal_round(other, scene.sealed(other, scene.vectors(3, seed=4), seed=4), handle=b"j" * 16)
            (second,) = set((tmp_path / "south").rglob("*.updates")) - {path}
            path.write_bytes(second.read_bytes())
        case "remove":
            path.unlink()
    spec = UpdateSpec(dataset_id=dataset, round=one)
    with pytest.raises(JobRefused) as error:
        scene.cores[1].queries.answer(spec, lambda _: b"", Call(caller=None))
    assert reason_of(error) is JobReason.DATASET_LOST
    assert scene.cores[0].queries.answer(spec, lambda _: b"", Call(caller=None)).answer


def test_a_file_of_updates_shows_nothing_and_is_the_owners_only(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    sealed = scene.sealed(one, scene.vectors(3))
    scene.seal_round(one, sealed)
    for path in tmp_path.rglob("*.updates"):
        assert path.stat().st_mode & 0o077 == 0
        assert all(report.report_id not in path.read_bytes() for report in sealed)


def test_nothing_is_locked_under_an_expected_id_before_the_updates_are_found_to_have_it(
    tmp_path: Path,
) -> None:
    scene = UpdateScene(tmp_path)
    one = scene.round()
    scene.prepare_round(one, scene.sealed(one, scene.vectors(3)))
    object.__setattr__(scene.cores[0].updates, "storing", Untouched())
    with pytest.raises(JobRefused) as refused:
        scene.cores[0].updates.commit(scene.task_id, b"h" * 16, b"\7", b"another task's".ljust(32), None)
    assert reason_of(refused) is JobReason.DATASET_CHANGED
