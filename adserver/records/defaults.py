"""Limits and defaults that command lines show, without what uses them."""

from typing import Final

MAX_ROUNDS: Final = 1_000_000
MAX_EPOCHS: Final = 10
"""How often a planned job goes through its dataset, at most, unless something else is asked for."""
QUERY_ID_BYTES: Final = 16
DEFAULT_BINS: Final = 64
"""With 12,000 records at epsilon 1, coarser bins cost AUC more than finer ones add noise to it.

Either is about 0.002.
"""
ASSUMED_AUC: Final = 0.8
"""The AUC of a model whose evaluation is forecast, where the caller gives none."""
ALL_DECOYS: Final = "all"
DEFAULT_COLLUSION_FACTOR: Final = 2.0
"""The ratio of the limits that helpers have by default.

Jobs over whole datasets spend both budgets at about this ratio: the ad server alone faces two noises.
"""
GROUP: Final = "group"
MAY_BE_HIDDEN: Final = "may_be_hidden"
"""What a row of a result calls its group, beside its values by their names."""
OTHER: Final = "other"
"""The category in which browsers count a key's gaps and words that it does not list."""
ALL: Final = "(all)"
REST: Final = "(rest)"
NOT_PRINTED: Final = "(not printed)"
NO_WORDS: Final = frozenset({ALL, REST, NOT_PRINTED})
"""What stands in results in the place of a group's word, and so is none."""

MOMENTUM: Final = 0.9
"""Of an optimizer that has one, unless another is named; the rule of learning rates is for this one."""

CLIP_QUANTILE: Final = 0.9
"""The share of gradients that the clip bound of a new job leaves as they are."""

TEST_SHARE: Final = 0.1
"""The part of a divided budget that private evaluations have together."""

MOST_JOB_NAME: Final = 100
MOST_JOB_NOTE: Final = 1_000
"""Characters of what an owner calls a job, and wants to remember of it."""
