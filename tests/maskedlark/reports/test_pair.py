import pickle
from multiprocessing.reduction import ForkingPickler

import helper.executors.processes  # noqa: F401 # says what its own processes are sent
from maskedlark.reports.pair import PairKey

KEY = PairKey(secret=bytes(range(32)), role=1)


def test_a_view_key_that_travelled_to_a_worker_tags_as_before() -> None:
    travelled = pickle.loads(ForkingPickler.dumps(KEY.view_key))  # noqa: S301 # our own bytes
    assert travelled.tag(b"i" * 16, b"view") == KEY.view_key.tag(b"i" * 16, b"view")
    assert "<redacted>" in repr(travelled)
    assert "<redacted>" in repr(KEY)
