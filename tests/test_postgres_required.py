"""Where PostgreSQL does not start, its tests are skipped, unless somebody counts on them: then they fail."""

import sys
from pathlib import Path

import pytest

from tests.postgres import REQUIRED, running_postgres


def refuse(*_: object, **__: object) -> None:
    raise RuntimeError("no server today")


@pytest.fixture(params=["it does not start", "it is not installed"])
def _without_postgres(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # else it would be left set for other tests
    if request.param == "it is not installed":
        monkeypatch.setitem(sys.modules, "pgserver", None)
    else:
        monkeypatch.setattr(pytest.importorskip("pgserver"), "get_server", refuse)


@pytest.mark.usefixtures("_without_postgres")
@pytest.mark.parametrize(("value", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_tests_without_postgresql_fail_where_it_is_required_and_are_skipped_elsewhere(
    monkeypatch: pytest.MonkeyPatch, value: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv(REQUIRED, value)
    with pytest.raises(outcome), running_postgres():
        pass
