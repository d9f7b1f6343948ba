"""The bound by Renyi divergences, which add up at each order.

Source: I. Mironov, K. Talwar, L. Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019.
"""

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.privacy.charge import GAUSSIAN_SLACK, continuous
from maskedlark.privacy.composing import random_allocation
from maskedlark.privacy.composing.likelihood_ratios import sample_ratios
from maskedlark.privacy.composing.merged_charges import ChargeParts, Setting
from maskedlark.privacy.mechanism import Mechanism

RENYI_ORDERS: Final = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
ORDERS: Final = np.array(RENYI_ORDERS, dtype=np.float64)


def pure_epsilons(laplace: dict[Setting, int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return numbers of rounds, and what each costs at delta 0.

    Ln(1 + q (e^epsilon - 1)) of one sampled release of epsilon = 1 / noise_multiplier.

    An epoch of random allocation costs epsilon: no more than if the slot were known. The sum of two noises
    costs what one does: far out their likelihood ratio is that of one.
    """
    rounds = np.array(list(laplace.values()), dtype=np.float64)
    epsilons = 1 / np.array([key.noise for key in laplace])
    rates = np.array([key.rate for key in laplace])
    # beyond 500 sampling saves nothing, and e^epsilon leaves the floats
    return rounds, np.where(epsilons > 500, epsilons, np.log1p(rates * np.expm1(np.minimum(epsilons, 500))))


def divergences_of(parts: ChargeParts) -> tuple[NDArray[np.float64], float]:
    """Return the summed Renyi divergences at each of `RENYI_ORDERS`, and the probability left out."""
    divergences = parts.precision * ORDERS / 2
    of_one = {key: count for key, count in parts.laplace.items() if key.noises == 1}
    if of_one:  # a pure epsilon costs min(epsilon, order epsilon^2 / 2) (Bun and Steinke 2016)
        rounds, pure = pure_epsilons(of_one)
        divergences += [float((rounds * np.minimum(pure, order * pure**2 / 2)).sum()) for order in ORDERS]
    for key, count in parts.laplace.items():
        if key.noises > 1:
            divergences += count * _laplace_divergences(key)
    left_out = 0.0
    for key, count in parts.sampled.items():
        noise = key.noise * GAUSSIAN_SLACK
        if key.is_of_labels:
            of_sample, tails = _divergences_of_labels(key)
            divergences += count * of_sample
            left_out += count * tails
        elif key.reports == 1 or noise < random_allocation.LEAST_NOISE:
            single = key.as_single_reports().noise * GAUSSIAN_SLACK
            divergences += count * key.reports * _renyi_divergences(single, key.rate)
        else:
            of_sample, tails = _sample_divergences(noise, key.rate, key.reports)
            divergences += count * of_sample
            left_out += count * tails
    for key, count in parts.epochs.items():
        if key.is_of_labels:
            of_epoch, tails = _divergences_of_labels(key)
            divergences += count * of_epoch
            left_out += count * tails
            continue
        of_epoch, tails = _epoch_divergences(key.as_single_reports())
        divergences += count * key.reports * of_epoch
        left_out += count * key.reports * tails
    return divergences, left_out


def epsilon_of_divergences(divergences: NDArray[np.float64], delta: float) -> float:
    """Return the least epsilon that the divergences at `ORDERS` give at a positive delta.

    Source: C. Canonne, G. Kamath, T. Steinke, "The Discrete Gaussian for Differential Privacy", 2020,
    proposition 12. A divergence r alone gives delta <= sqrt(1 - e^-r) at epsilon 0 (Bretagnolle and Huber).
    """
    if (delta**2 + np.expm1(-divergences) > 0).any():
        return 0.0
    # Any order gives a valid bound, so that the least of them does; no union over the orders is paid for,
    # because the divergences are fixed before anything is released.
    epsilons = divergences + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(epsilons.min()))


@lru_cache(maxsize=8192)
def _renyi_divergences(noise: float, rate: float) -> NDArray[np.float64]:
    """Return the Renyi divergence of one sampled Gaussian release at each of `RENYI_ORDERS`.

    At an integer order a it is ln(1 + sum over k >= 2 of C(a, k) (1-q)^(a-k) q^k (e^(k(k-1) / (2 noise^2)) -
    1)) / (a - 1). All terms are positive, so that unlike the textbook sum from k = 0 it loses no digits to
    cancellation where the divergence is tiny.
    """
    if rate == 1:
        return ORDERS / (2 * noise**2)
    starts, k, rest, log_choose = _binomials()
    exponent = k * (k - 1) / (2 * noise**2)
    log_moment = np.where(
        exponent > 50, exponent, np.log(np.expm1(np.minimum(exponent, 50)))
    )  # up to 1e-22, relatively
    terms = log_choose + rest * math.log1p(-rate) + k * math.log(rate) + log_moment
    largest = np.maximum.reduceat(terms, starts)
    counts = np.diff(np.append(starts, len(terms)))
    log_excess = largest + np.log(np.add.reduceat(np.exp(terms - np.repeat(largest, counts)), starts))
    return np.asarray(np.logaddexp(0, log_excess) / (ORDERS - 1))


@lru_cache(maxsize=1)
def _binomials() -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return, for all orders a in turn: where each begins, its k from 2 to a, a - k, and ln C(a, k)."""
    k = np.concatenate([np.arange(2, order + 1, dtype=np.float64) for order in RENYI_ORDERS])
    order = np.repeat(ORDERS, np.array(RENYI_ORDERS) - 1)
    starts = np.concatenate([[0], np.cumsum(np.array(RENYI_ORDERS) - 1)[:-1]]).astype(np.int64)
    factorials = np.array([math.lgamma(n + 1) for n in range(RENYI_ORDERS[-1] + 1)])  # their logarithms
    whole, part = order.astype(np.int64), k.astype(np.int64)
    return starts, k, order - k, factorials[whole] - factorials[part] - factorials[whole - part]


@lru_cache(maxsize=256)
def _laplace_divergences(key: Setting) -> NDArray[np.float64]:
    """Return the larger Renyi divergence of one release with several Laplace noises, at each order."""
    _, pure = pure_epsilons({key: 1})
    ratios = random_allocation.epoch_ratios(
        key.mechanism, continuous(key.mechanism, key.noise, key.noises), 1, noises=key.noises
    )
    of_sum = ratios.points(key.rate).bounded_divergences(ORDERS)
    return np.minimum(np.minimum(of_sum, pure), ORDERS * pure**2 / 2)


@lru_cache(maxsize=256)
def _sample_divergences(noise: float, rate: float, reports: int) -> tuple[NDArray[np.float64], float]:
    """Return the same of one sampled Gaussian release of several reports, and what that leaves out.

    Where one report at a time is the smaller bound, or too much is left out, that one.
    """
    found, left_out = sample_ratios(noise, rate, reports).divergences(ORDERS)
    singly = reports * _renyi_divergences(noise / math.sqrt(reports), rate)
    if left_out > most_left_out(1):
        return singly, 0.0
    return np.minimum(found, singly), left_out


@lru_cache(maxsize=256)
def _epoch_divergences(key: Setting) -> tuple[NDArray[np.float64], float]:
    """Return the larger Renyi divergence of both directions of one epoch, at each order.

    And the probability that the divergences leave out.

    An epoch that is too long or too little noised to be computed, or of which too much is left out, costs
    what it would if the slot were known.
    """
    noise = continuous(key.mechanism, key.noise, key.noises)
    if key.steps <= random_allocation.MAX_STEPS and noise >= random_allocation.LEAST_NOISE:
        ratios = random_allocation.epoch_ratios(key.mechanism, noise, key.steps, noises=key.noises)
        found, left_out = ratios.points().divergences(ORDERS)
        if left_out <= most_left_out(key.steps):
            return found, left_out
    match key.mechanism:
        case Mechanism.GAUSSIAN:
            return ORDERS / (2 * noise**2), 0.0
        case Mechanism.LAPLACE:
            return np.minimum(1 / noise, ORDERS / (2 * noise**2)), 0.0
        case Mechanism.NONE:
            return np.full(len(ORDERS), math.inf), 0.0


@lru_cache(maxsize=256)
def _divergences_of_labels(key: Setting) -> tuple[NDArray[np.float64], float]:
    """Return the same of a sampled Gaussian release or epoch, for one contribution against another."""
    noise = key.noise * GAUSSIAN_SLACK
    if key.steps <= random_allocation.MAX_STEPS and noise >= random_allocation.LEAST_NOISE:
        points = (
            sample_ratios(noise, key.rate, 1)
            if key.steps == 1
            else random_allocation.epoch_ratios(key.mechanism, noise, key.steps).points()
        )
        found, left_out = points.against_negative().divergences(ORDERS)
        if left_out <= most_left_out(key.steps):
            return np.minimum(found, 2 * ORDERS / noise**2), left_out
    return 2 * ORDERS / noise**2, 0.0


def most_left_out(steps: int) -> float:
    """Bound what may be left out of an epoch before anything is computed: several times the truth."""
    return 2.0**-38 + 2.0**-42 * steps
