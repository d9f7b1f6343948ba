"""Reports of a task with proofs, from the browser's example to what both helpers keep."""

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from maskedlark import canonical
from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.numbers.field import FieldVector, reconstruct, to_signed
from maskedlark.randomness import Randomness, seeded
from maskedlark.reports.dataset import ShareForHelper
from maskedlark.reports.proofs import proving
from maskedlark.reports.proofs.shape import ProofShape
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.reports.report import split as split_all
from maskedlark.reports.task import Task
from tests.builders import World, check_report, decode_shares, examples, reports, shares_for, split, world
from tests.maskedlark.reports.malicious import malformed
from tests.maskedlark.reports.sealed import sealed
from tests.measured import SHOP

TRAINS = world(proof=True)
MEASURES = world(proof=True, measurement=SHOP, min_batch_size=1)
PLAIN = world(keys=TRAINS.keys)


def person(task: Task, label: float | None = 1.0) -> Example:
    measured = None if task.measurement is None else MeasuredValues(keys=(7, 2, 3), values=(1, 42))
    return Example(features=np.arange(task.num_features, dtype=np.uint8), label=label, measured=measured)


@pytest.mark.parametrize("of", [TRAINS, MEASURES], ids=["trains", "measures"])
def test_honest_reports_enter_a_dataset_that_holds_what_one_without_proofs_would(of: World) -> None:
    given = [person(of.task, label) for label in (0.0, 1.0, None)] * 4
    first, second = of.datasets(reports(of, given))
    assert len(first) == len(given)
    assert first.dataset_id == second.dataset_id
    masks = reconstruct(first.shares.mask_shares, second.shares.mask_shares)
    assert sorted(masks.sum(axis=1).tolist()) == [0] * 4 + [1] * 8
    assert first.shares.mask_shares.shape == (len(given), of.task.num_candidates)
    if first.shares.measured is not None and second.shares.measured is not None:
        values = to_signed(
            reconstruct(first.shares.measured.value_shares, second.shares.measured.value_shares)
        )
        assert sorted(map(tuple, values.tolist())) == [(0,) * 8] * 4 + [(1, 1, 42, 0, 0, 0, 1, 0)] * 8


@pytest.mark.parametrize("of", [TRAINS, MEASURES, PLAIN], ids=["trains", "measures", "plain"])
def test_reports_split_together_are_those_split_alone_also_where_points_are_drawn_again(
    of: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few_are_usable(points: FieldVector, shape: ProofShape) -> NDArray[np.bool_]:
        return np.asarray(proving_usable(points, shape) & (points[:, 0] % np.uint64(3) == 0), np.bool_)

    proving_usable = proving._are_usable
    monkeypatch.setattr(proving, "_are_usable", few_are_usable)
    given = [person(of.task, label) for label in (0.0, 1.0, None)] * 3
    ids = [bytes([place]) * 16 for place in range(len(given))]
    together = split_all(
        of.task,
        given,
        [seeded(place) for place in range(len(given))],
        report_ids=ids,
        task_id=of.task.task_id,
    )
    alone = [split(of.task, one, seeded(place), ids[place]) for place, one in enumerate(given)]
    assert together == alone
    assert split_all(of.task, [], [], report_ids=[], task_id=of.task.task_id) == []


@pytest.mark.parametrize("of", [TRAINS, MEASURES], ids=["trains", "measures"])
def test_plaintexts_have_one_length_for_each_role_and_the_ad_server_checks_it(of: World) -> None:
    for label in (None, 0.0, 1.0):
        plaintexts = split(of.task, person(of.task, label), seeded(1))
        assert [len(one) for one in plaintexts] == [of.task.plaintext_length(role) for role in (0, 1)]
    for report in reports(of, [person(of.task)]):
        check_report(of.task, report)
    assert of.task.share_length == of.task.plaintext_length(1) > of.task.plaintext_length(0)


def test_a_wbcd_report_is_at_most_550_bytes() -> None:
    """As it travels: `make bench-proofs` measures the message; its two sealed shares are most of it."""
    of = world(proof=True, num_features=30)
    [report] = reports(of, examples(of.task, 1))
    assert sum(len(share.ciphertext) for share in report.shares) == 478


@pytest.mark.parametrize("of", [TRAINS, MEASURES], ids=["trains", "measures"])
def test_malformed_reports_are_kept_out_and_honest_ones_beside_them_stay(of: World) -> None:
    """Through sealing, opening and the real tags, whatever the view around them is."""
    shape = of.task.proof_shape
    assert shape is not None
    honest = reports(of, [person(of.task)] * 3)
    wrong = []
    for number, (_, parts) in enumerate(malformed(shape, seeded(3))):
        report_id = b"wrong" + number.to_bytes(11, "little")
        view = split(of.task, person(of.task), seeded(number), report_id).share_0[: of.task.view_length]
        wrong.append(sealed(of.bundle, (view + parts[0].tail(), view + parts[1].tail()), report_id))
    mixed = [*honest[:1], *wrong, *honest[1:]]
    prepared = [of.opener(role).open(shares_for(mixed, role)) for role in (0, 1)]
    both = prepared[0].admitted.intersect(prepared[1].admitted)
    assert np.flatnonzero(both).tolist() == [0, len(mixed) - 2, len(mixed) - 1]
    for one in prepared:  # alone, a helper sees only elements that are none
        assert set(one.admitted.dropped) <= {ReportReason.MASK_NOT_CANONICAL}


def test_a_proof_is_of_one_report_id_and_one_task() -> None:
    other = world(proof=True, keys=TRAINS.keys, salt=b"x" * 16)
    for of, made_for in ((TRAINS, bytes(16)), (other, bytes(range(16)))):
        plaintexts = split(TRAINS.task, person(TRAINS.task), seeded(1), made_for)
        for is_true_id in (False, True):
            report_id = made_for if is_true_id else b"another report16"
            moved = sealed(of.bundle, plaintexts, report_id)
            prepared = [of.opener(role).open(shares_for([moved], role)) for role in (0, 1)]
            is_kept = prepared[0].admitted.intersect(prepared[1].admitted)[0]
            assert is_kept == (is_true_id and of is TRAINS)


def test_a_seed_is_fresh_for_each_sealing() -> None:
    stream: Randomness = seeded(5)
    seeds = {split(TRAINS.task, person(TRAINS.task), stream).share_0[-32:] for _ in range(50)}
    assert len(seeds) == 50


def test_a_report_of_the_other_format_is_dropped() -> None:
    for of, version in ((TRAINS, 1), (PLAIN, 2)):
        plaintexts = split(of.task, person(of.task), seeded(1))
        changed = sealed(of.bundle, (bytes([version]) + plaintexts[0][1:], plaintexts[1]), bytes(range(16)))
        dropped = of.opener(0).open(shares_for([changed], 0)).admitted.dropped
        assert dropped == Counter({ReportReason.WRONG_VERSION: 1})
    crossed = sealed(PLAIN.bundle, split(TRAINS.task, person(TRAINS.task), seeded(1)), bytes(range(16)))
    item: ShareForHelper = shares_for([crossed], 1)[0]
    assert PLAIN.opener(1).open([item]).admitted.dropped == Counter({ReportReason.WRONG_LENGTH: 1})


@pytest.mark.parametrize("role", [0, 1])
def test_any_plaintext_of_the_right_length_is_read_without_an_error(role: int) -> None:
    for task in (TRAINS.task, MEASURES.task):
        length = task.plaintext_length(role)
        rows = np.frombuffer(seeded(6)(40 * length), np.uint8).reshape(40, length).copy()
        rows[0], rows[1] = 0, 255
        _, reasons = decode_shares(task, rows, role=role)
        assert all(reason is not None for reason in reasons)


def test_a_task_without_proofs_keeps_the_bytes_that_it_had_before_there_were_proofs() -> None:
    encoded = canonical.encode(PLAIN.task)
    assert b"proof" not in encoded
    assert canonical.decode(Task, encoded) == PLAIN.task
    with_proof = canonical.encode(TRAINS.task)
    assert b'"proof":true' in with_proof
    assert canonical.decode(Task, with_proof) == TRAINS.task
    spelled_out = with_proof.replace(b'"proof":true', b'"proof":false')
    with pytest.raises(InvalidTask, match="canonical"):
        canonical.decode(Task, spelled_out)
