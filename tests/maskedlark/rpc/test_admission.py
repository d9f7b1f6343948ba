from contextlib import ExitStack

import pytest

from maskedlark.errors import HelperUnavailable
from maskedlark.rpc.fair_quota import FairQuota


def test_each_caller_leaves_room_for_the_next() -> None:
    admission = FairQuota(4)
    with ExitStack() as stack:
        for caller in ("a", "a", "b", "c"):
            stack.enter_context(admission.enter(caller))
        for late in ("a", "b", "c", "d", None):
            with pytest.raises(HelperUnavailable), admission.enter(late):
                pass
    with ExitStack() as stack:  # all of it was given back
        for _ in range(2):
            stack.enter_context(admission.enter("a"))
        with pytest.raises(HelperUnavailable), admission.enter("a"):
            pass
        stack.enter_context(admission.enter("b"))
