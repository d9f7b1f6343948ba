import io
import sys

import pytest

from adserver.views.printing import sealing_bars


def closed() -> io.StringIO:
    found = io.StringIO()
    found.close()
    return found


@pytest.mark.parametrize("stream", [None, closed()], ids=["none", "closed"])
def test_a_dataset_is_sealed_without_standard_error(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        with sealing_bars() as show:
            show(0, 1, 2)


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_bars_are_drawn_where_the_environment_asks_for_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    for other in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(other, raising=False)
    with sealing_bars() as show:
        show(0, 1, 2)
    assert not written.getvalue()
    monkeypatch.setenv(name, "1")
    with sealing_bars() as show:
        show(0, 1, 2)
    assert "helper 0" in written.getvalue()
