import io
import os
import subprocess
import sys

import pytest

from adserver.views.printing import sealing_bars
from tests.patience import HANGS_S

ASKS_FOR_BARS = ("FORCE_COLOR", "TTY_COMPATIBLE")
SEALING = """
with sealing_bars() as show:
    show(0, 1, 2)
print("sealed", "rich" in sys.modules)
"""


@pytest.mark.parametrize("ended", ["sys.stderr = None", "sys.stderr.close()"])
def test_a_dataset_is_sealed_without_standard_error_and_draws_nothing(ended: str) -> None:
    program = f"import sys; from adserver.views.printing import sealing_bars; {ended}{SEALING}"
    environment = {name: value for name, value in os.environ.items() if name not in ASKS_FOR_BARS}
    printed = subprocess.check_output([sys.executable, "-c", program], env=environment, timeout=HANGS_S)
    assert printed.decode().split() == ["sealed", "False"]


@pytest.mark.parametrize("name", ASKS_FOR_BARS)
def test_bars_are_drawn_where_the_environment_asks_for_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    for other in ASKS_FOR_BARS:
        monkeypatch.delenv(other, raising=False)
    with sealing_bars() as show:
        show(0, 1, 2)
    assert not written.getvalue()
    monkeypatch.setenv(name, "1")
    with sealing_bars() as show:
        show(0, 1, 2)
    assert "helper 0" in written.getvalue()
