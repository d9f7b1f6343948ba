"""Our losses as objects of Google's dp-accounting, the tests' oracle of composition."""

from typing import Any

from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from maskedlark.privacy.composing.loss_distribution import LossDistribution


def for_dp_accounting(losses: LossDistribution) -> Any:
    """Return a distribution that composes with the library's own."""
    remove, add = (
        DensePLDPmf(one.grid, one.lowest, one.masses, one.at_infinity, True)
        for one in (losses.remove, losses.add)
    )
    return PrivacyLossDistribution(remove, add)
