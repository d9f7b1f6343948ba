"""Step 1: people see ads, and convert before the window closes or do not.

Their browsers report after a random delay. The simulation has its own clock, so that a month takes seconds.
This module decides *when* a report leaves the browser:

- A report is made at the conversion, or at the end of the attribution window if there was none (then its
  label is the default one). Either way it waits for a further random delay, because an upload right at the
  end of a window would reveal the label.
- Fake reports are made together with a real one: a coin that shows "fake" with the task's rate is thrown
  until it does not, so that the share of fakes among all reports has that rate as its mean. Each fake has a
  delay of the same distribution, so arrival times do not show which report is real.
- A report's time bucket is that of its *upload*. The ad server sees that moment anyway, so the bucket reveals
  nothing new. The time of the event would undo the delay: the ad server knows when it showed the ad, and a
  bucket exactly one window later means "did not convert".

A delay blurs timing, it does not remove it: with a window much longer than the delay, early uploads are
conversions more often than late ones. Choose a delay of the order of the window.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from browser_sim.draws import Draws
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness, uniform

HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
_DRAWN_TOGETHER: Final = 1_024


@frozen
class Habits:
    """How people and browsers behave.

    Attributes:
        impressions_per_person: Ads that one person sees; the last person may see fewer.
        duration_s: Impressions happen at uniform times in this period.
        attribution_window_s: A conversion counts within this time of the impression.
        max_extra_delay_s: Reports wait for a uniform time up to this long.
        fake_rate: The mean share of fake reports among all reports, in [0, 1).
        consent_rate: The chance that a person's browser reports at all.
        reports_per_person: The most real reports of one person; None for as many as they see ads. A browser
            does not know which of its reports become one dataset, so it keeps to this for the whole task.
    """

    impressions_per_person: int = 1
    duration_s: float = DAY_S
    attribution_window_s: float = DAY_S
    max_extra_delay_s: float = DAY_S
    fake_rate: float = 0.0
    consent_rate: float = 1.0
    reports_per_person: int | None = None

    def __post_init__(self) -> None:
        """Refuse what would never end or means nothing, with InvalidTask."""
        if self.impressions_per_person < 1:
            raise InvalidTask("impressions_per_person must be at least 1")
        if self.reports_per_person is not None and self.reports_per_person < 1:
            raise InvalidTask("reports_per_person must be at least 1")
        if not all(
            0.0 <= seconds < float("inf")
            for seconds in (self.duration_s, self.attribution_window_s, self.max_extra_delay_s)
        ):
            raise InvalidTask(
                "duration_s, attribution_window_s and max_extra_delay_s must be finite and not negative"
            )
        if not 0.0 <= self.fake_rate < 1.0:
            raise InvalidTask(f"fake_rate must be in [0, 1), not {self.fake_rate}")
        if not 0.0 <= self.consent_rate <= 1.0:
            raise InvalidTask(f"consent_rate must be in [0, 1], not {self.consent_rate}")


@frozen
class Upload:
    """A report that leaves a browser.

    Attributes:
        at_s: When, on the simulated clock (Unix seconds).
        row: The record that it reports, or None for a fake report.
    """

    at_s: float
    row: int | None = field(repr=False)


@frozen
class Campaign:
    """What came of all impressions.

    Attributes:
        uploads: In the order of their times.
        counts: What happened, in numbers.
    """

    uploads: tuple[Upload, ...]
    counts: "PeopleCounts"

    def reported_rows(self) -> NDArray[np.intp]:
        """Return the records that were really reported, in upload order."""
        return np.array([upload.row for upload in self.uploads if upload.row is not None], np.intp)


@dataclass(slots=True, kw_only=True)
class PeopleCounts:
    """What came of all impressions, in numbers.

    Attributes:
        people: People that saw an ad.
        impressions: Ads seen, one for each record.
        no_consent: Impressions of people without consent, whose browsers report nothing.
        conversions: Impressions that converted within the window, of people with consent.
        expired: Impressions whose window closed without a conversion, of people with consent.
        over_cap: Reports that were not made, since the person had made as many as the task allows.
        fakes: Fake reports among the uploads.
        too_late: Reports, real or fake, not sent since the task had expired by then.
    """

    people: int
    impressions: int
    no_consent: int = 0
    conversions: int = 0
    expired: int = 0
    over_cap: int = 0
    fakes: int = 0
    too_late: int = 0


# When something happens to a record, and its row.
_Moment: TypeAlias = tuple[float, int]
# When a report leaves a browser, and the row that it reports; None in a fake report.
_Due: TypeAlias = tuple[float, int | None]
_BY_TIME: Final = itemgetter(0)


def live_through(
    converts: NDArray[np.bool_],
    habits: Habits,
    *,
    starts_at_s: float,
    expires_at_s: float,
    draws: Draws,
    people: NDArray[np.int64] | None = None,
) -> Campaign:
    """Give every record to one person, once.

    Args:
        converts: bool (n,): whether the record's label is other than the default one.
        habits: How people and browsers behave.
        starts_at_s: When the simulated clock starts (Unix seconds).
        expires_at_s: When the task expires; no report is sent from then on.
        draws: Records are dealt to people, and everything else is drawn, from here.
        people: int64 (n,), equal for records of one person; None: they are dealt.
    """
    world = _World(converts, habits, expires_at_s, draws, people)
    return world.run(starts_at_s)


class _World:
    """What happens at each moment.

    Nothing that happens later changes what was shown, made or sent before, so each of these three is gone
    through in the order of its times, one after the other.
    """

    def __init__(
        self,
        converts: NDArray[np.bool_],
        habits: Habits,
        expires_at_s: float,
        draws: Draws,
        people: NDArray[np.int64] | None,
    ) -> None:
        self._converts = converts.tolist()
        self._habits = habits
        self._expires_at_s = expires_at_s
        # A stream for each, so that a change of one habit leaves what the others draw as it was.
        self._conversion_times = _chances(draws.stream("conversion times"))
        self._delays = _chances(draws.stream("delays"))
        self._fake_coin = _chances(draws.stream("fake coin"))
        self._shown_at = uniform(len(converts), draws.stream("impression times")) * habits.duration_s
        if people is None:
            # Dealt at random: rows that stand together in a file are not one person's.
            people = np.empty(len(converts), np.int64)
            dealt = np.arange(len(converts)) // habits.impressions_per_person
            people[draws.permutation(len(converts), "people")] = dealt
        names, person_of = np.unique(people, return_inverse=True)
        self._person_of = person_of.tolist()
        self._reports_of = [0] * len(names)
        self._consents = (uniform(len(names), draws.stream("consent")) < habits.consent_rate).tolist()
        self._counts = PeopleCounts(people=len(names), impressions=len(converts))

    def run(self, starts_at_s: float) -> Campaign:
        """Yield impressions, their reports, and the uploads; of two at once the older first."""
        shown = [(starts_at_s + at_s, row) for row, at_s in enumerate(self._shown_at.tolist())]
        made = self._made(sorted(shown, key=_BY_TIME))
        due = self._due(sorted(made, key=_BY_TIME))
        uploads = self._uploads(sorted(due, key=_BY_TIME))
        return Campaign(uploads=tuple(uploads), counts=self._counts)

    def _made(self, shown: Iterable[_Moment]) -> Iterator[_Moment]:
        """Yield when the label of each impression is known: it converts, or its window closes.

        Without consent the browser keeps nothing of it.
        """
        window_s = self._habits.attribution_window_s
        for at_s, row in shown:
            if not self._consents[self._person_of[row]]:
                self._counts.no_consent += 1
            elif self._converts[row]:
                yield at_s + window_s * next(self._conversion_times), row
            else:
                yield at_s + window_s, row

    def _due(self, made: Iterable[_Moment]) -> Iterator[_Due]:
        """Yield the real report of each, and fake ones, each after an independent delay."""
        cap, fake_rate = self._habits.reports_per_person, self._habits.fake_rate
        longest_s = self._habits.max_extra_delay_s
        for at_s, row in made:
            if self._converts[row]:
                self._counts.conversions += 1
            else:
                self._counts.expired += 1
            person = self._person_of[row]
            if cap is not None and self._reports_of[person] >= cap:
                self._counts.over_cap += 1
                continue
            self._reports_of[person] += 1
            yield at_s + longest_s * next(self._delays), row
            while next(self._fake_coin) < fake_rate:
                yield at_s + longest_s * next(self._delays), None

    def _uploads(self, due: Iterable[_Due]) -> Iterator[Upload]:
        """Yield what leaves the browsers before the task expires."""
        for at_s, row in due:
            if at_s >= self._expires_at_s:
                self._counts.too_late += 1
            else:
                self._counts.fakes += row is None
                yield Upload(at_s=at_s, row=row)


def _chances(randomness: Randomness) -> Iterator[float]:
    """Yield uniform numbers in [0, 1), drawn in batches: singly, a million people take seconds."""
    while True:
        yield from uniform(_DRAWN_TOGETHER, randomness).tolist()
