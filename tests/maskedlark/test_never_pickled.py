import copy
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

import helper.executors.processes  # noqa: F401 # says what its own processes are sent
from helper.trust.keys import HelperKeys
from maskedlark.reports.helper_pair_key import ViewKey
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.sealing import OpeningKey
from tests.maskedlark.reports.test_helper_pair_key import KEY

OPENING = OpeningKey.generate(key_id=3)
HELPER = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM)


@pytest.mark.parametrize("secret", [OPENING, KEY, KEY.view_key, HELPER, [OPENING], {"pair": KEY}])
@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_no_key_is_pickled_or_copied_unnoticed(secret: object, how: Callable[[object], object]) -> None:
    if isinstance(secret, list | dict) and how is copy.copy:
        return  # a shallow copy of a list holds the same keys
    with pytest.raises(TypeError, match="holds a secret and is not pickled"):
        how(secret)


def test_the_pool_of_this_machine_sends_what_opens_shares_and_nothing_else() -> None:
    def travelled(secret: object) -> Any:
        return pickle.loads(ForkingPickler.dumps(secret))  # noqa: S301 # our own bytes

    assert travelled(OPENING).public() == OPENING.public()
    assert isinstance(travelled(KEY.view_key), ViewKey)
    for secret in (KEY, HELPER):
        with pytest.raises(TypeError, match="holds a secret"):
            travelled(secret)
