"""Sizes of samples hide a person with all their reports, not one report of them."""

from maskedlark.privacy.sample_size import hides, least_batch, under, work_size


def test_none_of_a_persons_reports_counts_among_the_others() -> None:
    size, k, reports = 1_200, 20, 1_000
    rate = least_batch(dataset_size=size, k=k) / size
    assert hides(dataset_size=size, rate=rate, k=k)
    assert under(k, others=size - reports, rate=rate) > 2.0**-20
    assert not hides(dataset_size=size, rate=rate, k=k, reports=reports)
    more = least_batch(dataset_size=size, k=k, reports=reports)
    assert hides(dataset_size=size, rate=more / size, k=k, reports=reports)
    assert more > least_batch(dataset_size=size, k=k)


def test_a_dataset_of_one_person_hides_no_sample() -> None:
    assert not hides(dataset_size=100, rate=0.99, k=1, reports=100)


def test_the_padding_has_room_for_all_of_a_persons_reports() -> None:
    alone = work_size(expected=500, least=20, most=10_000)
    assert work_size(expected=500, least=20, most=10_000, reports=8) == alone + 7
