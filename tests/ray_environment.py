"""How Ray authenticates in tests. Ray reads it once, where it is first imported: it is said before any test.

`tests/conftest.py` does so, and so does an import of this module, for what runs Ray without pytest.
"""

import os
import secrets
import sys

TOLD = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # as `helper.executors.ray_connection` says it
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",  # as docs/how-to/grow.md says it
}


def tell_ray() -> None:
    """Set the environment of Ray, once for this process and those that it starts.

    Raises:
        ImportError: Ray was imported before, and has read something else.
    """
    is_told = (
        all(os.environ.get(name) == value for name, value in TOLD.items()) and "RAY_AUTH_TOKEN" in os.environ
    )
    if "ray" in sys.modules and not is_told:
        raise ImportError("ray was imported before `tests.ray_environment` said how it authenticates")
    os.environ.update(TOLD)
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


tell_ray()
