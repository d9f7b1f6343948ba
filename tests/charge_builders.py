"""Charges of one mechanism: `gaussian(1.1, rate=0.01, rounds=100)`."""

from typing import Any

from maskedlark.privacy.charge import Charge
from maskedlark.privacy.mechanism import Mechanism


def gaussian(noise: float, rate: float = 1.0, rounds: int = 1, **more: Any) -> Charge:
    return _charge(Mechanism.GAUSSIAN, noise, rate, rounds, more)


def laplace(noise: float, rate: float = 1.0, rounds: int = 1, **more: Any) -> Charge:
    return _charge(Mechanism.LAPLACE, noise, rate, rounds, more)


def _charge(mechanism: Mechanism, noise: float, rate: float, rounds: int, more: dict[str, Any]) -> Charge:
    return Charge(mechanism=mechanism, noise_multiplier=noise, sampling_rate=rate, rounds=rounds, **more)
