import numpy as np
import pytest

from browser_sim.draws import Draws
from browser_sim.people import Habits, live_through
from browser_sim.sealing import _batch_size, seal_all, workers_for
from browser_sim.source import SourceRecords
from maskedlark.errors import InvalidTask
from maskedlark.numbers.field import add
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.reports.upload import Report
from tests.browser_sim.sinks import reports_of
from tests.builders import World, check_report, world


def records(labels: list[int], width: int = 4) -> SourceRecords:
    rng = np.random.default_rng(3)
    return SourceRecords(
        features=rng.integers(0, 256, (len(labels), width), np.uint8), labels=np.array(labels, np.float64)
    )


def sealed(
    of: World, given: SourceRecords, *, seed: int | None = 1, workers: int = 1, fake_rate: float = 0.0
) -> list[Report]:
    draws = Draws(seed=seed)
    lived = live_through(
        given.labels != of.task.labels.default_label,
        Habits(fake_rate=fake_rate),
        starts_at_s=of.task.starts_at,
        expires_at_s=of.task.expires_at,
        draws=draws,
    )
    return reports_of(seal_all(of.bundle, lived.uploads, given, draws, workers=workers))


def plaintexts(of: World, reports: list[Report]) -> list[OpenedDataset]:
    return list(of.datasets(reports))


def test_real_reports_hold_one_real_candidate_at_the_true_label_and_fakes_none() -> None:
    ours = world(labels={"kind": "classes", "size": 5, "default_label": 2}, num_decoys=2)
    given = records([0, 1, 2, 3, 4] * 20)
    reports = sealed(ours, given, fake_rate=0.4)
    first, second = plaintexts(ours, reports)
    masks = add(first.shares.mask_shares, second.shares.mask_shares)
    is_real = masks.sum(axis=1) == 1
    assert is_real.sum() == 100
    assert len(reports) > 120
    assert (masks[~is_real] == 0).all()
    assert ((masks == 0) | (masks == 1)).all()
    labels = (first.shares.labels * masks).sum(axis=1)[is_real]
    seen = sorted(
        (bytes(row), int(label)) for row, label in zip(first.shares.features[is_real], labels, strict=True)
    )
    assert seen == sorted(
        (bytes(row), int(label)) for row, label in zip(given.features, given.labels, strict=True)
    )


def test_the_same_seed_gives_the_same_ids_buckets_and_plaintexts_whatever_the_workers() -> None:
    ours = world()
    given = records([0, 1] * 300)
    one, two = (sealed(ours, given, workers=workers, fake_rate=0.2) for workers in (1, 3))
    assert [(report.report_id, report.time_bucket) for report in one] == [
        (report.report_id, report.time_bucket) for report in two
    ]
    for left, right in zip(plaintexts(ours, one), plaintexts(ours, two), strict=True):
        assert (left.shares.features == right.shares.features).all()
        assert (left.shares.labels == right.shares.labels).all()
        assert (left.shares.mask_shares == right.shares.mask_shares).all()
    assert [report.shares for report in one] != [
        report.shares for report in two
    ]  # HPKE's ephemeral keys are never seeded


def test_without_a_seed_report_ids_never_repeat() -> None:
    ours = world()
    given = records([0, 1] * 20)
    ids = [report.report_id for _ in range(2) for report in sealed(ours, given, seed=None)]
    assert len(set(ids)) == len(ids)


def test_every_report_has_masks_and_an_id_of_its_own() -> None:
    ours = world()
    reports = sealed(ours, records([1] * 600))
    assert len({report.report_id for report in reports}) == 600
    masks = plaintexts(ours, reports)[0].shares.mask_shares
    assert len(np.unique(masks)) == masks.size


def test_time_buckets_are_those_of_the_uploads_in_order() -> None:
    ours = world(time_bucket_s=60)
    draws = Draws(seed=4)
    given = records([0, 1] * 40)
    lived = live_through(
        given.labels != 0,
        Habits(),
        starts_at_s=ours.task.starts_at,
        expires_at_s=ours.task.expires_at,
        draws=draws,
    )
    reports = reports_of(seal_all(ours.bundle, lived.uploads, given, draws, workers=1))
    assert [report.time_bucket for report in reports] == [int(upload.at_s // 60) for upload in lived.uploads]
    for report in reports:
        check_report(ours.task, report)


def test_fake_features_come_from_each_columns_own_distribution() -> None:
    ours = world()
    given = SourceRecords(
        features=np.tile(np.array([[7, 0, 1, 2], [7, 255, 1, 3]], np.uint8), (150, 1)), labels=np.ones(300)
    )
    reports = sealed(ours, given, fake_rate=0.5)
    first, second = plaintexts(ours, reports)
    is_fake = add(first.shares.mask_shares, second.shares.mask_shares).sum(axis=1) == 0
    features = first.shares.features[is_fake]
    assert [set(column) for column in features.T.tolist()] == [{7}, {0, 255}, {1}, {2, 3}]
    assert len(np.unique(features, axis=0)) == 4  # columns are drawn on their own, not rows


def test_feature_noise_of_the_task_is_applied() -> None:
    ours = world(feature_epsilon=1.0)
    given = SourceRecords(features=np.full((50, 4), 128, np.uint8), labels=np.ones(50))
    features = plaintexts(ours, sealed(ours, given))[0].shares.features
    assert len(np.unique(features)) > 10


def test_a_record_that_does_not_fit_the_task_is_refused_also_from_a_worker() -> None:
    ours = world()
    for workers in (1, 2):
        with pytest.raises(InvalidTask):
            sealed(ours, records([0, 1], width=5), workers=workers)


def test_batches_shrink_with_the_reports_size() -> None:
    assert _batch_size(world().task) == 1_024
    wide = world(num_features=65_536).task
    assert 1 <= _batch_size(wide) * 2 * wide.share_length <= 1 << 20


def test_few_reports_are_not_worth_a_process() -> None:
    assert workers_for(0) == workers_for(1_000) == 1


def test_no_features_or_labels_show_in_a_repr() -> None:
    given = records([1])
    assert "features" not in repr(given)
    assert "labels" not in repr(given)
