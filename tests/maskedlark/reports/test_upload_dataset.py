from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.numbers import field
from maskedlark.randomness import seeded
from maskedlark.reports import dataset as dataset_module
from maskedlark.reports.dataset import ShareColumns, ShareForHelper, canonical_order, dataset_id
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.sealing import SealingKey, share_info
from maskedlark.reports.task import REPORT_ID_BYTES, TaskBundle
from maskedlark.reports.upload import Report, SealedShare, Sealer
from tests.builders import NOW, World, check_report, examples, reports, shares_for, split, world
from tests.refusals import refused

WORLD = world()
REPORTS = reports(WORLD, examples(WORLD.task, 6))


def dropped(of: World, role: int, incoming: list[ShareForHelper]) -> dict[ReportReason, int]:
    return dict(of.opener(role).open(incoming).admitted.dropped)


@pytest.mark.parametrize("suite", list(HpkeSuite))
def test_both_helpers_admit_honest_reports_and_agree_on_the_dataset(suite: HpkeSuite) -> None:
    of = world(suite=suite)
    sealed = reports(of, examples(of.task, 5))
    first, second = of.datasets(sealed)
    assert first.dataset_id == second.dataset_id
    assert len(first) == len(second) == 5
    assert (first.shares.features == second.shares.features).all()
    assert (
        field.reconstruct(first.shares.mask_shares, second.shares.mask_shares).sum(axis=1).tolist() == [1] * 5
    )


def test_columns_are_the_shares_that_they_are_of() -> None:
    shares = shares_for(REPORTS, 0)
    columns = ShareColumns.of(shares)
    assert list(columns) == shares
    assert list(columns[1:3]) == shares[1:3]
    assert columns[-1] == shares[-1]
    assert ShareColumns.of(columns) is columns


def test_an_unverified_bundle_makes_no_sealer() -> None:
    bad = TaskBundle(task=WORLD.task, signatures=(bytes(64), bytes(64)), key_lists=WORLD.bundle.key_lists)
    with pytest.raises(InvalidTask):
        Sealer(bad, now=NOW)


def test_only_the_time_bucket_of_an_event_is_sent() -> None:
    bucket = WORLD.task.time_bucket_s
    start = NOW - NOW % bucket
    sealer = Sealer(WORLD.bundle, now=NOW)
    (example,) = examples(WORLD.task, 1)
    assert {
        sealer.report(example, unix_s=start + s, randomness=seeded(s)).time_bucket for s in (0, 1, bucket - 1)
    } == {start // bucket}


def test_a_report_in_two_halves_is_the_same_and_the_first_half_shows_no_plaintext() -> None:
    sealer = Sealer(WORLD.bundle, now=NOW)
    (example,) = examples(WORLD.task, 1)
    [split] = sealer.split([example], [NOW], [seeded(1)])
    whole, sealed = sealer.report(example, unix_s=NOW, randomness=seeded(1)), sealer.seal(split)
    assert (sealed.report_id, sealed.time_bucket) == (whole.report_id, whole.time_bucket)
    opened = [[one.shares for one in WORLD.datasets([report])] for report in (whole, sealed)]
    for left, right in zip(*opened, strict=True):
        assert (left.features == right.features).all()
        assert (left.labels == right.labels).all()
        assert (left.mask_shares == right.mask_shares).all()
    assert "plaintext" not in repr(split)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"task_id": bytes(32)}, ReportReason.WRONG_TASK),
        ({"report_id": bytes(15)}, ReportReason.MALFORMED),
        ({"time_bucket": 0}, ReportReason.OUTSIDE_TASK_PERIOD),
        (
            {"shares": (SealedShare(key_id=1, ciphertext=b""), REPORTS[0].shares[1])},
            ReportReason.WRONG_LENGTH,
        ),
        (
            {"shares": (REPORTS[0].shares[0], SealedShare(key_id=1, ciphertext=bytes(5_000)))},
            ReportReason.WRONG_LENGTH,
        ),
        (
            {"shares": (SealedShare(key_id=256, ciphertext=bytes(100)), REPORTS[0].shares[1])},
            ReportReason.MALFORMED,
        ),
    ],
)
def test_what_the_ad_server_can_see_to_be_wrong_is_refused(
    change: dict[str, Any], reason: ReportReason
) -> None:
    check_report(WORLD.task, REPORTS[0])
    with refused(reason):
        check_report(WORLD.task, replace(REPORTS[0], **change))


def tamper(share: SealedShare) -> SealedShare:
    return replace(share, ciphertext=share.ciphertext[:-1] + bytes([share.ciphertext[-1] ^ 1]))


def test_each_bad_share_is_dropped_with_its_reason_and_the_others_go_on() -> None:
    good = shares_for(REPORTS, 0)
    a, b = good[0], good[1]
    cases = [
        (replace(a, share=tamper(a.share)), ReportReason.NOT_OPENED),
        (replace(a, share=replace(a.share, ciphertext=a.share.ciphertext[:-1])), ReportReason.WRONG_LENGTH),
        (
            replace(a, share=replace(a.share, ciphertext=a.share.ciphertext + bytes(2_000))),
            ReportReason.WRONG_LENGTH,
        ),
        (
            replace(a, share=replace(a.share, ciphertext=a.share.ciphertext + bytes(5))),
            ReportReason.WRONG_LENGTH,
        ),
        (replace(a, share=replace(a.share, key_id=77)), ReportReason.UNKNOWN_KEY),
        (replace(a, share=REPORTS[0].shares[1]), ReportReason.UNKNOWN_KEY),
        (replace(a, report_id=b.report_id), ReportReason.NOT_OPENED),
        (replace(a, report_id=bytes(3)), ReportReason.MALFORMED),
        (replace(a, time_bucket=a.time_bucket + 1), ReportReason.NOT_OPENED),
        (replace(a, time_bucket=1), ReportReason.OUTSIDE_TASK_PERIOD),
    ]
    for bad, reason in cases:
        prepared = WORLD.opener(0).open([bad, *good[2:]])
        assert dict(prepared.admitted.dropped) == {reason: 1}, reason
        assert prepared.admitted.is_admitted.tolist() == [False] + [True] * 4


def test_swapped_helper_roles_do_not_open_even_under_one_key_id() -> None:
    keys = (world().keys[0], world().keys[0])
    of = world(
        keys=(keys[0], replace(world().keys[1], opening=keys[0].opening))
    )  # both helpers hold the same HPKE key
    sealed = reports(of, examples(of.task, 2))
    assert dropped(of, 0, shares_for(sealed, 1)) == {ReportReason.NOT_OPENED: 2}
    assert dropped(of, 1, shares_for(sealed, 0)) == {ReportReason.NOT_OPENED: 2}
    assert dropped(of, 0, shares_for(sealed, 0)) == {}


def test_a_report_of_another_task_does_not_open() -> None:
    other = world(keys=WORLD.keys, name="another")
    assert dropped(other, 0, shares_for(REPORTS, 0)) == {ReportReason.NOT_OPENED: len(REPORTS)}


def test_a_repeated_report_is_admitted_once() -> None:
    good = shares_for(REPORTS, 0)
    prepared = WORLD.opener(0).open([*good, *good[:2]])
    assert prepared.admitted.is_admitted.tolist() == [True] * 6 + [False] * 2
    assert dict(prepared.admitted.dropped) == {ReportReason.DUPLICATE_ID: 2}


def test_a_plaintext_of_another_length_is_dropped_though_it_opens() -> None:
    """A browser that pads its plaintext within the sealed length's tolerance."""
    task, role = WORLD.task, 0
    info = share_info(
        task_id=task.task_id, report_id=bytes(16), time_bucket=task.time_bucket(NOW), role=role, key_id=1
    )
    sealed = SealingKey(WORLD.keys[role].opening.public()).seal(bytes(task.share_length + 1), info)
    item = ShareForHelper(
        report_id=bytes(16), time_bucket=task.time_bucket(NOW), share=SealedShare(key_id=1, ciphertext=sealed)
    )
    assert dropped(WORLD, role, [item]) == {ReportReason.WRONG_LENGTH: 1}


def two_faced_report(of: World) -> Report:
    """A browser that tells the two helpers different features under one report id."""
    one, other = examples(of.task, 2)
    task = of.task
    report_id, bucket = bytes(range(16)), task.time_bucket(NOW)
    plaintexts = (split(task, one, seeded(1)).share_0, split(task, other, seeded(1)).share_1)
    shares = []
    for role, plaintext in enumerate(plaintexts):
        key = of.keys[role].opening
        info = share_info(
            task_id=task.task_id, report_id=report_id, time_bucket=bucket, role=role, key_id=key.key_id
        )
        shares.append(
            SealedShare(key_id=key.key_id, ciphertext=SealingKey(key.public()).seal(plaintext, info))
        )
    return Report(
        task_id=task.task_id, report_id=report_id, time_bucket=bucket, shares=(shares[0], shares[1])
    )


def test_a_report_that_tells_the_helpers_different_things_is_kept_out() -> None:
    mixed = [*REPORTS[:2], two_faced_report(WORLD), *REPORTS[2:]]
    prepared = [WORLD.opener(role).open(shares_for(mixed, role)) for role in (0, 1)]
    assert all(one.admitted.is_admitted.all() for one in prepared)  # each alone sees nothing wrong
    assert prepared[0].admitted.intersect(prepared[1].admitted).tolist() == [
        True,
        True,
        False,
        True,
        True,
        True,
        True,
    ]


def test_view_tags_of_equal_views_differ_between_reports() -> None:
    (example,) = examples(WORLD.task, 1)
    same = reports(WORLD, [example] * 40)
    tags = WORLD.opener(0).open(shares_for(same, 0)).admitted.view_tags
    assert len({tag.tobytes() for tag in tags}) == 40


def test_a_report_dropped_by_one_helper_is_in_neither_dataset() -> None:
    half_bad = replace(REPORTS[1], shares=(REPORTS[1].shares[0], tamper(REPORTS[1].shares[1])))
    first, second = WORLD.datasets([REPORTS[0], half_bad, REPORTS[2]])
    assert first.dataset_id == second.dataset_id
    assert len(first) == 2
    assert REPORTS[1].report_id not in {one.tobytes() for one in first.report_ids}


def test_the_dataset_does_not_depend_on_the_order_of_reports() -> None:
    forward, _ = WORLD.datasets(REPORTS)
    backward, _ = WORLD.datasets(REPORTS[::-1])
    assert forward.dataset_id == backward.dataset_id
    assert (forward.report_ids == backward.report_ids).all()
    assert (forward.shares.mask_shares == backward.shares.mask_shares).all()


@given(
    st.lists(
        st.binary(min_size=REPORT_ID_BYTES, max_size=REPORT_ID_BYTES), min_size=1, max_size=30, unique=True
    )
)
def test_canonical_order_is_that_of_byte_strings(ids: list[bytes]) -> None:
    array = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, REPORT_ID_BYTES)
    assert [one.tobytes() for one in array[canonical_order(array)]] == sorted(ids)


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 255]), st.sampled_from([0, 7]), st.integers(0, 255)),
        unique=True,
        max_size=60,
    ),
    st.sampled_from([0, 1 << 20]),
)
def test_ids_that_begin_alike_are_sorted_by_their_ends_on_any_number_of_threads(
    ends: list[tuple[int, int, int]], apart: int
) -> None:
    ids = [bytes([first, *bytes(6), middle, *bytes(7), last]) for first, middle, last in ends]
    array = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, REPORT_ID_BYTES)
    with patch.object(dataset_module, "_SORTED_APART", apart):
        assert [one.tobytes() for one in array[canonical_order(array)]] == sorted(ids)
        some = canonical_order(array, np.arange(0, len(ids), 3))
        assert [one.tobytes() for one in array[some]] == sorted(ids[::3])


@pytest.mark.parametrize("apart", [0, 1 << 20])
def test_groups_of_ids_that_begin_alike_are_each_sorted_by_their_ends(apart: int) -> None:
    ids = [
        bytes([0, *bytes(6), middle]) + end.to_bytes(8, "big")
        for middle in (7, 3, 9, 5)
        for end in (2**63, 2, 2**40, 1, 255, 256)[: middle - 3]
    ]
    array = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, REPORT_ID_BYTES)
    with patch.object(dataset_module, "_SORTED_APART", apart):
        assert [one.tobytes() for one in array[canonical_order(array)]] == sorted(ids)


@pytest.mark.parametrize(
    ("apart", "cores", "workers"), [(99, 5, []), (98, 5, [5]), (98, None, [1]), (0, 1, [1])]
)
def test_many_ids_are_sorted_by_a_thread_for_each_core(
    monkeypatch: pytest.MonkeyPatch, apart: int, cores: int | None, workers: list[int]
) -> None:
    made: list[int] = []

    def pool(count: int) -> ThreadPoolExecutor:
        made.append(count)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(dataset_module, "_SORTED_APART", apart)
    monkeypatch.setattr(dataset_module, "ThreadPoolExecutor", pool)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    array = np.frombuffer(seeded(5)(16 * 98), np.uint8).reshape(-1, REPORT_ID_BYTES)
    ids = [one.tobytes() for one in array]
    assert [one.tobytes() for one in array[canonical_order(array)]] == sorted(ids)
    assert made == workers


def test_the_dataset_id_is_the_digest_that_the_specification_says() -> None:
    ids = np.arange(32, dtype=np.uint8).reshape(2, 16)
    task_id = bytes(32)
    tags = ids[::-1]
    parts = [task_id, ids.tobytes(), tags.tobytes()]
    written_out = b"maskedlark/v1 dataset" + b"".join(
        len(part).to_bytes(8, "little") + part for part in parts
    )
    assert dataset_id(task_id, ids, tags) == sha256(written_out).digest()


@given(st.integers(0, 40), st.sampled_from([1, 7, 40, 1 << 16]), st.randoms(use_true_random=False))
def test_a_dataset_id_of_some_rows_is_that_of_the_rows_taken_out(
    count: int, slice_rows: int, chance: Random
) -> None:
    ids, tags = (
        np.frombuffer(chance.randbytes(40 * 16), np.uint8).reshape(-1, REPORT_ID_BYTES) for _ in range(2)
    )
    rows = np.array(chance.sample(range(40), count), np.intp)
    written_out = b"maskedlark/v1 dataset" + b"".join(
        len(part).to_bytes(8, "little") + part
        for part in (bytes(32), ids[rows].tobytes(), tags[rows].tobytes())
    )
    with patch.object(dataset_module, "_SLICE_ROWS", slice_rows):
        assert dataset_id(bytes(32), ids, tags, rows=rows) == sha256(written_out).digest()
        assert dataset_id(bytes(32), ids[rows], tags[rows]) == sha256(written_out).digest()


def test_an_empty_chunk_opens_to_nothing() -> None:
    prepared = WORLD.opener(0).open([])
    assert len(prepared.shares) == 0
    assert prepared.admitted.is_admitted.tolist() == []
