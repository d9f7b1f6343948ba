"""Programs that tests need and a machine may lack: a test is skipped without, or fails where it is required.

`.ci/run` sets the variables named `MASKEDLARK_REQUIRE_...`, so that CI skips nothing it counts on.
"""

import os
import shutil
from typing import Final, NoReturn

import pytest

NODE_REQUIRED: Final = "MASKEDLARK_REQUIRE_NODE"


def find_program(*names: str, variable: str, required: str, package: str) -> str:
    """Return the path that an environment variable names, or that of the first of some programs.

    Args:
        names: Of the program, the most usual one first.
        variable: Names another path.
        required: The environment variable that is set where the test must not be skipped.
        package: What to install.
    """
    found = os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        do_without(f"no {names[0]}: install {package}, or name a path in {variable}", required)
    return found


def do_without(reason: str, required: str) -> NoReturn:
    """Skip the test, or let it fail where an environment variable says that it is counted on."""
    if os.environ.get(required):
        pytest.fail(f"{reason}; {required} says that it is needed")
    pytest.skip(reason)
