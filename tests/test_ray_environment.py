import os
import sys
from types import ModuleType

import pytest

from tests.ray_environment import TOLD, tell_ray


def test_ray_is_told_how_to_authenticate_before_any_test() -> None:
    assert {name: os.environ[name] for name in TOLD} == TOLD
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_an_import_of_ray_before_it_is_told_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    tell_ray()
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    with pytest.raises(ImportError, match="before"):
        tell_ray()
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_the_token_of_the_process_that_started_this_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    before = "7" * 64
    monkeypatch.setenv("RAY_AUTH_TOKEN", before)
    tell_ray()
    assert os.environ["RAY_AUTH_TOKEN"] == before
