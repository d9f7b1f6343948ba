from contextlib import ExitStack

import pytest

from maskedlark.errors import HelperUnavailable
from maskedlark.rpc.admission import Admission


def test_one_caller_gets_half_of_the_room_and_another_the_rest() -> None:
    admission = Admission(4)
    with ExitStack() as stack:
        for caller in ("a", "a", "b", "b"):
            stack.enter_context(admission.entered(caller))
        for late in ("a", "b", "c", None):
            with pytest.raises(HelperUnavailable), admission.entered(late):
                pass
    with ExitStack() as stack:  # all of it was given back
        for _ in range(2):
            stack.enter_context(admission.entered("a"))
        with pytest.raises(HelperUnavailable), admission.entered("a"):
            pass
        stack.enter_context(admission.entered("b"))
