import pickle
from multiprocessing.reduction import ForkingPickler

import helper.executors.processes  # noqa: F401 # says what its own processes are sent
from maskedlark.reports.pair import PairKey

KEY = PairKey(secret=bytes(range(32)), role=1)


def test_a_key_that_travelled_to_a_worker_draws_and_tags_as_before() -> None:
    key = KEY
    travelled = pickle.loads(ForkingPickler.dumps(key))  # noqa: S301 # our own bytes
    assert travelled.view_tag(b"i" * 16, b"view") == key.view_tag(b"i" * 16, b"view")
    assert travelled.agreement_tag(b"t", b"v") == key.agreement_tag(b"t", b"v")
    assert (travelled.blind(b"t", 5) == key.blind(b"t", 5)).all()
    assert "<redacted>" in repr(travelled)
