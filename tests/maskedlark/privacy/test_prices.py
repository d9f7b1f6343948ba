"""What both helpers charge for a table of jobs, to eight digits: this accountant's own output, pinned.

The numbers were written down from this code, so they show that a price has changed and never that it is
right: that prices bound the truth is for the tests beside this one. A change matters by itself, because two
helpers compute prices each for itself and for years: one that came to charge otherwise would refuse what the
other allows, and contradict its own statements. Whoever makes the accountant tighter writes the new numbers
here, and says so in the changelog.
"""

from collections.abc import Sequence

import pytest

from maskedlark.privacy.accounting import spent_against_ad_server, spent_in_turn
from maskedlark.privacy.charge import Charge
from maskedlark.privacy.composing.renyi import RENYI_ORDERS
from tests.charge_builders import gaussian, laplace

Jobs = Sequence[Sequence[Charge]]

PRICES: dict[str, tuple[Jobs, float, float, float]] = {
    "sampled Gaussian": ([[gaussian(1.1, 0.01, 100)]], 1e-6, 0.3353345086, 83.97860899),
    "sampled Gaussian, delta too small for distributions": (
        [[gaussian(1.1, 0.01, 100)]],
        1e-12,
        1.2131053,
        104.7029796,
    ),
    "sampled Gaussian, too many rounds for distributions": (
        [[gaussian(30.0, 0.01, 1 << 21)]],
        1e-6,
        1.608067063,
        1394.906235,
    ),
    "sampled Laplace": ([[laplace(5.0, 0.1, 50)]], 1e-6, 0.3021624959, 6.701720177),
    "sampled Laplace, no delta": ([[laplace(5.0, 0.1, 50), laplace(3.0)]], 0.0, 1.42827026, 10.33333333),
    "known Laplace and Gaussian": (
        [[laplace(4.0, rounds=3), gaussian(2.0, rounds=2)]],
        1e-6,
        2.501014446,
        3.797969175,
    ),
    "epochs": ([[gaussian(0.8, rounds=3, epoch_steps=9)]], 1e-6, 3.295656535, 12.16801747),
    "Laplace epochs": ([[laplace(2.0, rounds=3, epoch_steps=5)]], 1e-6, 0.8575997719, 1.49999372),
    "an epoch of more steps than are computed": (
        [[gaussian(2.0, rounds=2, epoch_steps=(1 << 16) + 1)]],
        1e-6,
        2.268412629,
        3.327629403,
    ),
    "an epoch with less noise than is computed": (
        [[gaussian(0.069, epoch_steps=9)]],
        1e-6,
        98.48453683,
        173.4388602,
    ),
    "Laplace with less noise than is computed": ([[laplace(0.069, 0.5, 2)]], 1e-6, 27.5992139, 28.98550725),
    "epochs with an overlap": (
        [[gaussian(1.5, rounds=2, epoch_steps=7, overlap=0.4)]],
        1e-6,
        2.106563014,
        4.596848087,
    ),
    "epochs of several reports": (
        [[gaussian(1.5, rounds=2, epoch_steps=9, reports=2)]],
        1e-6,
        2.238665587,
        10.29589831,
    ),
    "epochs of many reports": (
        [[gaussian(6.0, rounds=2, epoch_steps=9, reports=20)]],
        1e-6,
        5.984732381,
        32.95785226,
    ),
    "epochs of several reports with an overlap": (
        [[gaussian(2.0, epoch_steps=9, reports=3, overlap=0.4)]],
        1e-6,
        3.451530979,
        7.848199456,
    ),
    "samples of several reports": ([[gaussian(2.0, 0.05, 20, reports=3)]], 1e-6, 1.247030309, 53.81475491),
    "Laplace samples of several reports": (
        [[laplace(5.0, 0.2, 3, reports=2)]],
        1e-6,
        0.9867693171,
        1.199993721,
    ),
    "labels, epochs": (
        [[gaussian(0.8, rounds=3, epoch_steps=9).of_labels()]],
        1e-6,
        6.429186075,
        29.40319775,
    ),
    "labels, samples": ([[gaussian(1.0, 0.05, 40).of_labels()]], 1e-6, 2.151450929, 139.6213282),
    "labels, several reports": (
        [[gaussian(2.0, 0.05, 20, reports=3).of_labels()]],
        1e-6,
        2.203400774,
        153.2823035,
    ),
    "labels, overlap": (
        [[gaussian(1.0, epoch_steps=3, overlap=0.8).of_labels()]],
        1e-6,
        6.750041272,
        11.05227191,
    ),
    "labels, known": ([[gaussian(3.0).of_labels(), laplace(3.0).of_labels()]], 1e-6, 2.48771842, 3.69319259),
    "self-sampled": ([[gaussian(1.0, 0.05, 40, is_self_sampled=True)]], 1e-6, 1.474654666, 3.011664535),
    "common noise": (
        [[laplace(3.0, rounds=2, is_common=True, delta=1e-8)], [gaussian(3.0)]],
        1e-6,
        1.987467267,
        1.457683276,
    ),
    "samples that rarely show": (
        [[gaussian(1.1, 0.01, 100, exposure=2.0**-50)]],
        1e-6,
        0.3353584757,
        83.97860899,
    ),
    "samples at two settings": (
        [[gaussian(1.1, 0.01, 50, exposure=1e-9), gaussian(1.5, 0.02, 50, exposure=1e-12)]],
        1e-6,
        42.10960723,
        69.09745199,
    ),
    "samples that show, of a thousandth of delta": (
        [[gaussian(1.1, 0.01, 100, exposure=3e-12)]],
        1e-6,
        0.3353584757,
        83.97860899,
    ),
    "samples that show, of a fiftieth": (
        [[gaussian(1.1, 0.01, 100, exposure=5e-11)]],
        1e-6,
        0.3358182892,
        83.97860899,
    ),
    "samples that show, of half": (
        [[gaussian(1.1, 0.01, 100, exposure=1.5e-10)]],
        1e-6,
        0.3518343311,
        83.97860899,
    ),
    "samples that show too often": (
        [[gaussian(3.0, 0.01, 100, exposure=2e-10)]],
        1e-6,
        13.50136921,
        20.87230097,
    ),
    "samples that show too often for their epsilon": (
        [[gaussian(0.6, 0.05, 100, exposure=1.5e-10)]],
        1e-6,
        124.9443183,
        217.6853314,
    ),
    "in turn, samples that show too often": (
        [[gaussian(3.0, 0.01, 100, exposure=1e-8)], [gaussian(2.0, 0.1, 5)]],
        1e-6,
        16.8664054,
        22.35860328,
    ),
    "9 samples": (
        [[gaussian(2.0 + number / 8, 0.01, 30) for number in range(9)]],
        1e-6,
        0.2208262488,
        54.21724966,
    ),
    "9 samples of several reports, of which too much is left out": (
        [[gaussian(1.0 + number / 8, 0.05, 20, reports=3) for number in range(9)]],
        1e-6,
        9.165618286,
        555.165371,
    ),
    "30 samples": (
        [[gaussian(2.0 + number / 50, 0.01 + number / 1000, 30) for number in range(30)]],
        1e-6,
        1.444164253,
        149.6247982,
    ),
    "9 epochs": (
        [[gaussian(3.0 + number / 8, epoch_steps=4) for number in range(9)]],
        1e-6,
        1.628783623,
        4.188472207,
    ),
    "9 epochs, samples and queries": (
        [
            [gaussian(3.0 + number / 8, epoch_steps=4) for number in range(7)]
            + [gaussian(4.0, 0.1, 9), laplace(9.0), gaussian(9.0)]
        ],
        1e-6,
        1.417018216,
        5.482132649,
    ),
    "9 Laplace": ([[laplace(20.0 + number) for number in range(9)]], 1e-6, 0.2450196269, 0.3794313818),
    "30 Laplace": (
        [[laplace(20.0 + number / 50, 0.5) for number in range(30)]],
        1e-6,
        0.303892071,
        1.249337518,
    ),
    "in turn, samples": (
        [[gaussian(1.1, 0.01, 100)], [gaussian(2.0, 0.1, 5)]],
        1e-6,
        1.015177561,
        84.92991611,
    ),
    "in turn, epochs and queries": (
        [[gaussian(2.0, rounds=2, epoch_steps=9)], [laplace(8.0)], [gaussian(9.0, rounds=2)]],
        1e-6,
        1.184276155,
        4.339570946,
    ),
    "in turn, pure": ([[laplace(20.0)], [laplace(30.0, 0.5, 2)]], 1e-6, 0.08361109825, 0.1166666667),
    "in turn, 9 epochs": (
        [[gaussian(3.0 + number / 8, epoch_steps=4)] for number in range(9)],
        1e-6,
        1.961972015,
        4.188472207,
    ),
    "in turn, samples that show": (
        [[gaussian(1.1, 0.01, 100, exposure=1e-10)], [gaussian(2.0, 0.1, 5)]],
        1e-6,
        1.015177561,
        84.92991611,
    ),
    "in turn, overlap": (
        [[gaussian(1.5, rounds=2, epoch_steps=7, overlap=0.4)], [gaussian(5.0)]],
        1e-6,
        2.841354316,
        4.712970061,
    ),
    "in turn, several reports": (
        [[gaussian(3.0, 0.05, 20, reports=3)], [gaussian(4.0, epoch_steps=5, reports=2)]],
        1e-6,
        1.379757063,
        30.95762911,
    ),
    "in turn, labels": (
        [[gaussian(3.0, 0.05, 20).of_labels()], [gaussian(4.0, epoch_steps=5).of_labels()]],
        1e-6,
        1.05328845,
        18.42359104,
    ),
    "in turn, one setting": (
        [[gaussian(1.1, 0.01, 60)], [gaussian(1.1, 0.01, 40)]],
        1e-6,
        0.3353345086,
        83.97860899,
    ),
    "in turn, one setting of a mixed plan": (
        [[gaussian(1.1, 0.01, 60, is_of_mixed_plan=True)], [gaussian(1.1, 0.01, 40)]],
        1e-6,
        0.9389964813,
        132.1451004,
    ),
    "in turn, delta too small for epochs": (
        [[gaussian(3.0, epoch_steps=4)], [gaussian(4.0)]],
        1e-10,
        2.098682705,
        2.56307663,
    ),
    "an epsilon that no exponential holds": (
        [[gaussian(0.03, 0.5, 100, exposure=1e-12)]],
        1e-6,
        28903.95691,
        57148.86882,
    ),
    "in turn, an epsilon that no exponential holds": (
        [[gaussian(0.03, 0.5, 100, exposure=1e-12)], [gaussian(2.0, 0.1, 5)]],
        1e-6,
        83343.13786,
        57149.50279,
    ),
    "9 epochs of an epsilon that no exponential holds": (
        [[gaussian(0.08 + n / 1000, rounds=20, epoch_steps=4) for n in range(9)]],
        1e-6,
        6935.451773,
        13555.16863,
    ),
    "labels, an epoch of more steps than are computed": (
        [[gaussian(2.0, rounds=2, epoch_steps=(1 << 16) + 1).of_labels()]],
        1e-6,
        4.914584096,
        7.325359769,
    ),
    "labels, less noise than is computed": (
        [[gaussian(0.069, epoch_steps=9).of_labels()]],
        1e-6,
        307.1225738,
        557.7224775,
    ),
    "samples of several reports with less noise than is computed": (
        [[gaussian(0.069, 0.1, 2, reports=3)]],
        1e-6,
        1152.087794,
        2183.358601,
    ),
    "in turn, hardly a delta": ([[laplace(9.0)], [laplace(7.0)]], 1e-298, 0.253968254, 0.253968254),
}
"""The jobs, delta, and the epsilons against the ad server and with a helper colluding."""


@pytest.mark.parametrize("what", PRICES)
def test_a_price_stays_what_it_is(what: str) -> None:
    jobs, delta, ad_server, colluding = PRICES[what]
    found = spent_in_turn(jobs, delta)
    assert found.ad_server == pytest.approx(ad_server, rel=1e-8)
    assert found.colluding == pytest.approx(colluding, rel=1e-8)
    assert spent_against_ad_server(jobs, delta) == found.ad_server


@pytest.mark.parametrize(
    ("noise", "order", "ad_server"),
    [
        (2.5, 9, 2.686007848),
        (9, 29, 0.7206027783),
        (24, 80, 0.2610687438),
        (32, 96, 0.1917651739),
        (40, 128, 0.1524583173),
        (60, 192, 0.09969042152),
        (80, 256, 0.07370813993),
        (160, 512, 0.03555071534),
        (400, 1024, 0.01307064576),
    ],
)
def test_a_price_stays_what_it_is_at_each_order(noise: float, order: int, ad_server: float) -> None:
    """Nine different samples, so that Renyi divergences alone decide: at this order."""
    charges = [gaussian(noise + number / 8, 0.5, 2) for number in range(9)]
    assert order in RENYI_ORDERS
    assert spent_against_ad_server([charges], 1e-6) == pytest.approx(ad_server, rel=1e-8)
