import subprocess
import sys

from tests.patience import HANGS_S

_RAISED = """
import resource
from maskedlark.runtime.hardening import allow_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
most = 512 if hard == resource.RLIM_INFINITY else min(hard, 512)
resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, hard))
allow_open_files(most)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)
allow_open_files(most // 4)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)
resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, most))
allow_open_files(2 * most)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
"""


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be_and_never_lowered() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _RAISED], capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "files may be open at once" in ran.stderr
