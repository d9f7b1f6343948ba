import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from browser_sim.draws import Draws
from browser_sim.people import DAY_S, HOUR_S, Campaign, Habits, live_through
from maskedlark.errors import InvalidTask

START = 1_800_000_000.0
NEVER = START + 1e9


def campaign(
    converts: list[bool] | NDArray[np.bool_], seed: int = 1, expires_at_s: float = NEVER, **habits: float
) -> Campaign:
    return live_through(
        np.array(converts, np.bool_),
        Habits(**habits),  # type: ignore[arg-type]
        starts_at_s=START,
        expires_at_s=expires_at_s,
        draws=Draws(seed=seed),
    )


@given(
    converts=st.lists(st.booleans(), max_size=60),
    seed=st.integers(0, 1000),
    fake_rate=st.floats(0, 0.7),
    consent_rate=st.floats(0, 1),
    impressions_per_person=st.integers(1, 7),
    lifetime_days=st.floats(0, 4),
)
@settings(deadline=None, max_examples=60)
def test_every_impression_has_one_fate_and_every_report_is_counted(
    *,
    converts: list[bool],
    seed: int,
    fake_rate: float,
    consent_rate: float,
    impressions_per_person: int,
    lifetime_days: float,
) -> None:
    lived = campaign(
        converts,
        seed,
        START + lifetime_days * DAY_S,
        fake_rate=fake_rate,
        consent_rate=consent_rate,
        impressions_per_person=impressions_per_person,
    )
    assert (
        lived.counts.impressions
        == len(converts)
        == lived.counts.no_consent + lived.counts.conversions + lived.counts.expired
    )
    assert lived.counts.people == -(-len(converts) // impressions_per_person)
    rows = lived.reported_rows().tolist()
    assert len(rows) == len(set(rows))
    assert lived.counts.fakes == len(lived.uploads) - len(rows)
    assert (
        len(lived.uploads) + lived.counts.too_late
        >= lived.counts.conversions + lived.counts.expired
        >= len(rows)
    )
    times = [upload.at_s for upload in lived.uploads]
    assert times == sorted(times)
    assert all(START <= time < START + lifetime_days * DAY_S for time in times)


def test_without_fakes_and_refusals_every_record_is_reported_exactly_once() -> None:
    lived = campaign([True, False] * 200)
    assert sorted(lived.reported_rows()) == list(range(400))
    assert (
        lived.counts.conversions,
        lived.counts.expired,
        lived.counts.fakes,
        lived.counts.too_late,
        lived.counts.no_consent,
    ) == (
        200,
        200,
        0,
        0,
        0,
    )


def test_the_same_seed_lives_the_same_life_and_another_seed_another() -> None:
    converts = [True, False, False] * 50
    assert campaign(converts, 5, fake_rate=0.3, consent_rate=0.8) == campaign(
        converts, 5, fake_rate=0.3, consent_rate=0.8
    )
    assert campaign(converts, 5, fake_rate=0.3) != campaign(converts, 6, fake_rate=0.3)


def test_without_a_seed_two_lives_differ() -> None:
    lives = [
        live_through(
            np.ones(50, np.bool_), Habits(), starts_at_s=START, expires_at_s=NEVER, draws=Draws(seed=None)
        )
        for _ in range(2)
    ]
    assert lives[0] != lives[1]


def test_expired_impressions_report_after_the_whole_window_and_conversions_within_it() -> None:
    expired = campaign([False] * 300, duration_s=0.0, attribution_window_s=7 * HOUR_S, max_extra_delay_s=0.0)
    assert {upload.at_s for upload in expired.uploads} == {START + 7 * HOUR_S}
    converted = campaign([True] * 300, duration_s=0.0, attribution_window_s=7 * HOUR_S, max_extra_delay_s=0.0)
    waits = np.array([upload.at_s - START for upload in converted.uploads])
    assert 0 <= waits.min() < HOUR_S
    assert 6 * HOUR_S < waits.max() < 7 * HOUR_S


def test_the_extra_delay_is_spread_over_its_whole_range() -> None:
    lived = campaign([False] * 500, duration_s=0.0, attribution_window_s=0.0, max_extra_delay_s=10.0)
    waits = np.array([upload.at_s - START for upload in lived.uploads])
    assert 0 <= waits.min() < 1
    assert 9 < waits.max() < 10
    assert abs(waits.mean() - 5) < 0.6


def test_impressions_are_spread_over_the_duration() -> None:
    lived = campaign([False] * 500, duration_s=10.0, attribution_window_s=0.0, max_extra_delay_s=0.0)
    times = np.array([upload.at_s - START for upload in lived.uploads])
    assert 0 <= times.min() < 1
    assert 9 < times.max() < 10


def test_the_share_of_fakes_among_all_reports_is_the_rate() -> None:
    lived = campaign([True] * 4000, fake_rate=0.4)
    # Standard error of the share: sqrt(0.4 * 0.6 / 6667) = 0.006.
    assert abs(lived.counts.fakes / len(lived.uploads) - 0.4) < 0.03


def test_arrival_times_of_fakes_are_distributed_like_those_of_real_reports() -> None:
    lived = campaign([True] * 2000 + [False] * 2000, fake_rate=0.5)
    real = np.sort([upload.at_s for upload in lived.uploads if upload.row is not None])
    fake = np.sort([upload.at_s for upload in lived.uploads if upload.row is None])
    grid = np.concatenate([real, fake])
    distance = np.abs(np.searchsorted(real, grid) / len(real) - np.searchsorted(fake, grid) / len(fake)).max()
    assert (
        distance < 0.06
    )  # two-sample Kolmogorov-Smirnov at 4,000 each: 0.043 at the 0.1 % level, and fakes share creation times


def test_without_consent_nothing_is_reported_not_even_fakes() -> None:
    lived = campaign([True, False] * 50, consent_rate=0.0, fake_rate=0.5)
    assert (len(lived.uploads), lived.counts.no_consent, lived.counts.conversions, lived.counts.expired) == (
        0,
        100,
        0,
        0,
    )


def test_consent_is_given_by_people_and_not_by_impressions() -> None:
    lived = campaign([True] * 400, consent_rate=0.5, impressions_per_person=10)
    assert lived.counts.people == 40
    assert lived.counts.no_consent % 10 == 0
    assert 0 < lived.counts.no_consent < 400


def test_nothing_is_sent_to_an_expired_task() -> None:
    lived = campaign([False] * 20, expires_at_s=START + DAY_S, attribution_window_s=DAY_S)
    assert (len(lived.uploads), lived.counts.too_late, lived.counts.expired) == (0, 20, 20)


def test_a_person_reports_no_more_often_than_the_cap() -> None:
    lived = campaign([True, False] * 35, impressions_per_person=7, reports_per_person=3, fake_rate=0.5)
    assert len(lived.reported_rows()) == 30
    assert lived.counts.over_cap == 40
    assert len(campaign([True, False] * 35, impressions_per_person=7).reported_rows()) == 70


def test_records_that_name_their_people_are_reported_and_consented_to_by_these() -> None:
    people = np.array([7, 3, 7, 7, 3, 9] * 20) + 10 * np.repeat(np.arange(20), 6)
    lived = live_through(
        np.ones(len(people), np.bool_),
        Habits(reports_per_person=2, consent_rate=0.5),
        starts_at_s=START,
        expires_at_s=NEVER,
        draws=Draws(seed=1),
        people=people,
    )
    counts, reported = lived.counts, np.unique_counts(people[lived.reported_rows()])
    assert counts.people == len(set(people.tolist())) == 60
    assert 0 < len(reported.values) < counts.people
    # Of those who consent, each reports all rows up to the cap
    rows = dict(zip(*np.unique(people, return_counts=True), strict=True))
    assert reported.counts.tolist() == [min(2, rows[one]) for one in reported.values.tolist()]
    assert counts.over_cap == sum(max(0, rows[one] - 2) for one in reported.values.tolist()) > 0
    assert counts.no_consent + counts.over_cap + reported.counts.sum() == len(people)


@pytest.mark.parametrize(
    ("setting", "wrong", "reason"),
    [
        ("fake_rate", 1.0, "fake_rate"),
        ("fake_rate", -0.1, "fake_rate"),
        ("fake_rate", float("nan"), "fake_rate"),
        ("consent_rate", 1.5, "consent_rate"),
        ("duration_s", -1.0, "duration_s"),
        ("attribution_window_s", float("inf"), "attribution_window_s"),
        ("max_extra_delay_s", float("nan"), "max_extra_delay_s"),
        ("impressions_per_person", 0, "impressions_per_person"),
        ("reports_per_person", 0, "reports_per_person"),
    ],
)
def test_habits_that_mean_nothing_are_refused(setting: str, wrong: float, reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        Habits(**{setting: wrong})  # type: ignore[arg-type]
