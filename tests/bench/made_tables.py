"""Tables whose rows are drawn from known odds, of the kind that people make up to try a product.

Each has a date, numbers of which some have gaps, and words of three to two hundred kinds. The odds hold
effects of single columns, some not monotone, and of pairs of columns. The AUC of the odds themselves is the
most that any model can reach.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.encoding.dates import parts
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, fit
from tests.bench.examples import Examples, Table

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
_FIRST_DAY: Final = datetime(2026, 1, 1, tzinfo=UTC)
_DAYS: Final = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeTable:
    """A table, and the log odds that its labels were drawn with."""

    table: Table
    logits: Floats


class _Columns:
    """Columns in the making."""

    def __init__(self, rows: int, seed: int) -> None:
        self.random, self.rows = np.random.default_rng(seed), rows
        self.cells = dict[str, list[str | None]]()

    def words(self, name: str, kinds: int, skew: float = 1.0) -> Codes:
        """Add a column of words, the first ones the most frequent; return their codes."""
        shares = 1.0 / np.arange(1, kinds + 1) ** skew
        codes: Codes = self.random.choice(kinds, self.rows, p=shares / shares.sum())
        self.cells[name] = [f"{name} {code}" for code in codes]
        return codes

    def numbers(self, name: str, values: Floats, *, gaps: float = 0.0, digits: int = 2) -> Floats:
        """Add a column of numbers, of which a share is missing; return its values."""
        missing = self.random.random(self.rows) < gaps
        self.cells[name] = [
            None if is_missing else repr(round(float(value), digits))
            for value, is_missing in zip(values, missing, strict=True)
        ]
        return values

    def dates(self, name: str) -> tuple[Floats, Codes]:
        """Add a column of dates with times; return the share of the period that is over, and the hour."""
        days = self.random.integers(0, _DAYS, self.rows)
        hours = np.clip(self.random.normal(15, 5, self.rows), 0, 23).astype(np.int64)
        moments = [
            _FIRST_DAY + timedelta(days=int(day), hours=int(hour))
            for day, hour in zip(days, hours, strict=True)
        ]
        self.cells[name] = [moment.strftime("%Y-%m-%d %H:%M") for moment in moments]
        return days / _DAYS, hours

    def effect(self, kinds: int, size: float) -> Floats:
        """Draw an effect for each word."""
        return self.random.normal(0, size, kinds)

    def pair(self, first: int, second: int, size: float) -> Floats:
        """Draw an effect for each pair of words, (first, second)."""
        return self.random.normal(0, size, (first, second))

    def made(self, logits: Floats, rate: float) -> MadeTable:
        """Shift the odds to a base rate, and draw the labels."""
        low, high = -20.0, 20.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if _chance(logits + middle).mean() < rate else (low, middle)
        logits = logits + low
        labels = (self.random.random(self.rows) < _chance(logits)).astype(np.int64)
        return MadeTable(table=Table(cells=self.cells, labels=labels), logits=logits)


def clicks(rows: int, seed: int) -> MadeTable:
    """Clicks on ads, 12 %: mostly effects of pairs of words, and of the hour at each device."""
    of = _Columns(rows, seed)
    over, hour = of.dates("seen")
    site, country = of.words("site", 200), of.words("country", 40)
    topic, place, device = of.words("topic", 12, 0.5), of.words("place", 8, 0.5), of.words("device", 3, 0.5)
    browser = of.words("browser", 6)
    age = of.numbers("age", of.random.uniform(18, 80, rows), gaps=0.2, digits=0)
    visits = of.numbers("visits", of.random.poisson(4, rows).astype(np.float64), digits=0)
    price = of.numbers("price", of.random.lognormal(3, 0.8, rows), gaps=0.1)
    depth = of.numbers("depth", of.random.beta(2, 3, rows))
    of.numbers("latency", of.random.gamma(3, 40, rows))
    kind_of_site = of.random.integers(0, 6, 200)[site]
    logits = (
        of.effect(200, 0.3)[site]
        + of.effect(40, 0.2)[country]
        + of.effect(12, 0.3)[topic]
        + of.effect(8, 0.3)[place]
        + of.effect(6, 0.1)[browser]
        + of.pair(6, 12, 0.6)[kind_of_site, topic]
        + of.pair(3, 8, 0.5)[device, place]
        + 0.6 * np.sin((hour - 9) / 24 * 2 * np.pi) * np.array([1.0, -1.0, 0.3])[device]
        - 0.5 * ((age - 45) / 18) ** 2 * (topic % 3 == 0)
        + 0.3 * ((age - 45) / 18) * (topic % 3 == 1)
        + 0.25 * np.log1p(visits)
        - 0.3 * (np.log(price) - 3) * (topic % 2)
        + 0.8 * (depth - 0.4)
        + 0.4 * over
    )
    return of.made(logits, 0.12)


def purchases(rows: int, seed: int) -> MadeTable:
    """Purchases, 20 %: effects of single columns, half of them not monotone, and three pairs."""
    of = _Columns(rows, seed)
    over, hour = of.dates("visited")
    channel, region, category = of.words("channel", 5, 0.5), of.words("region", 16), of.words("category", 24)
    campaign, device = of.words("campaign", 60), of.words("device", 3, 0.5)
    age = of.numbers("age", of.random.normal(42, 14, rows).clip(16, 90), gaps=0.15, digits=0)
    income = of.numbers("income", of.random.lognormal(10.4, 0.5, rows), gaps=0.2, digits=0)
    basket = of.numbers("basket", of.random.gamma(2, 30, rows))
    pages = of.numbers("pages", of.random.geometric(0.12, rows).astype(np.float64), digits=0)
    minutes = of.numbers("minutes", of.random.gamma(1.5, 4, rows))
    of.numbers("score", of.random.normal(0, 1, rows))
    logits = (
        of.effect(5, 0.5)[channel]
        + of.effect(16, 0.3)[region]
        + of.effect(24, 0.4)[category]
        + of.effect(60, 0.3)[campaign]
        + 0.7 * np.cos((hour - 20) / 24 * 2 * np.pi)
        - 0.5 * ((age - 38) / 15) ** 2
        + 0.5 * (np.log(income) - 10.4) * np.array([1.5, 0.0, -1.0])[device]
        + 0.4 * np.log1p(pages) * (channel < 2)
        - 0.012 * (basket - 60) * (minutes < 4)
        + of.pair(5, 3, 0.4)[channel, device]
        + 0.5 * over
    )
    return of.made(logits, 0.2)


def offers(rows: int, seed: int) -> MadeTable:
    """Offers taken, 20 %: few strong effects, most of them of two columns with few words."""
    of = _Columns(rows, seed)
    over, hour = of.dates("shown")
    device, channel = of.words("device", 3, 0.5), of.words("channel", 5, 0.5)
    country, category = of.words("country", 12), of.words("category", 30, 0.7)
    publisher = of.words("publisher", 200)
    age = of.numbers("age", of.random.normal(42, 14, rows).clip(18, 85), gaps=0.1, digits=0)
    income = of.numbers("income", of.random.lognormal(10.4, 0.5, rows), gaps=0.15, digits=0)
    recency = of.numbers("recency", of.random.exponential(20, rows), gaps=0.05, digits=1)
    visits = of.numbers("visits", of.random.poisson(5, rows).astype(np.float64), digits=0)
    discount = of.numbers("discount", of.random.uniform(0, 0.5, rows))
    is_mobile, is_evening = device == 0, hour >= 18
    logits = (
        of.effect(12, 0.3)[country]
        + of.effect(30, 0.4)[category]
        + of.effect(200, 0.2)[publisher]
        + 1.6 * (is_mobile & is_evening)
        - 0.8 * (~is_mobile & is_evening)
        + 1.0 * np.exp(-(((age - 35) / 10) ** 2))
        + 5.0 * (discount - 0.25) * (channel < 2)
        + 0.8 * (np.log(income) - 10.4) / 0.5 * np.where(channel == 1, -1.0, 0.6)
        - 0.03 * recency * (device != 2)
        + 0.1 * visits
        + 0.5 * over
    )
    return of.made(logits, 0.2)


def _chance(logits: Floats) -> Floats:
    chances: Floats = 1 / (1 + np.exp(-logits))
    return chances


def encoded(made: MadeTable, rows: int) -> tuple[Encoder, Examples]:
    """Return the encoder that quickstart fits to the first rows, dates as their parts, and all rows."""
    columns = dict(made.table.cells)
    date = next(iter(columns))
    cells = {**parts(columns, date), **{name: cells for name, cells in columns.items() if name != date}}
    encoder = fit({name: column[:rows] for name, column in cells.items()}, FitSettings())
    return encoder, Examples(features=encoder.features(cells), labels=made.table.labels)


TABLES: Final[dict[str, Callable[[int, int], MadeTable]]] = {
    "clicks": clicks,
    "purchases": purchases,
    "offers": offers,
}
