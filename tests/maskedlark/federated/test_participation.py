import pytest

from maskedlark.federated.participation import Part, toss
from maskedlark.randomness import seeded


def test_devices_are_drawn_at_the_rate_and_covered_at_theirs() -> None:
    stream = seeded(1)
    parts = [toss(0.2, 0.5, stream) for _ in range(20_000)]
    assert parts.count(Part.UPDATE) == pytest.approx(4000, abs=5 * 57)
    assert parts.count(Part.COVER) == pytest.approx(8000, abs=5 * 70)


def test_the_ends_of_the_rates_are_certain() -> None:
    assert toss(1.0, 0.0, lambda count: b"\xff" * count) is Part.UPDATE
    assert toss(0.5, 1.0, lambda count: b"\xff" * count) is Part.COVER
    assert toss(0.5, 0.0, lambda count: b"\xff" * count) is Part.SILENT


def test_a_coin_always_takes_sixteen_bytes() -> None:
    for rate in (1.0, 1e-9):
        stream = seeded(4)
        toss(rate, 0.5, stream)
        rest = seeded(4)
        rest(16)
        assert stream(8) == rest(8)


@pytest.mark.parametrize(("rate", "cover"), [(0.0, 1.0), (1.1, 1.0), (0.5, -0.1), (0.5, float("nan"))])
def test_a_rate_outside_its_range_is_refused(rate: float, cover: float) -> None:
    with pytest.raises(ValueError, match="sampling_rate"):
        toss(rate, cover, seeded(1))
