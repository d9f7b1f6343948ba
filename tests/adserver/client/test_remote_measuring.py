"""Answers of an ad server elsewhere, read back as the results that were sent."""

import json
import math

import numpy as np

from adserver.client.remote_measuring import evaluation_from_json
from adserver.measuring.evaluation_result import EvaluationResult, read
from adserver.measuring.result import NOT_KNOWN
from adserver.views.evaluation import evaluation_json
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism


def evaluation_of_nothing() -> EvaluationResult:
    readings = read(np.zeros((2, 10)), mechanism=Mechanism.NONE, noise_scale=0.0, is_of_classes=False, seed=1)
    unbounded = Epsilons(ad_server=math.inf, colluding=math.inf)
    return EvaluationResult(
        query_id="01" * 16,
        task_id="02" * 32,
        dataset_id="03" * 32,
        mechanism=Mechanism.NONE,
        records=0,
        delta=1e-6,
        cost=unbounded,
        dataset_spent=unbounded,
        is_of_classes=False,
        metrics=readings.metrics,
        roc=readings.roc,
        pr=readings.pr,
        calibration=readings.calibration,
        num_bins=10,
        noise_scale=0.0,
    )


def test_what_is_not_known_of_a_model_is_the_same_from_elsewhere_as_here() -> None:
    here = evaluation_of_nothing()
    sent = json.loads(json.dumps(evaluation_json(here), allow_nan=False))
    assert repr(NOT_KNOWN) in map(repr, (one.estimate for one in here.metrics))
    assert repr(evaluation_from_json(sent)) == repr(here)
