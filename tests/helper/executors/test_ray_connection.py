"""The connection to Ray where no cluster answers, or one has no room."""

import socket
from pathlib import Path

import pytest

from maskedlark.errors import InvalidTask
from maskedlark.interrupt import never

pytest.importorskip("ray", reason="needs the extra `ray`: make setup-cluster")

from helper.executors import ray_connection  # needs ray

pytestmark = pytest.mark.long


def test_a_control_store_that_answers_nothing_is_not_awaited_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_connection, "_CONNECTS_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InvalidTask, match="no Ray cluster answers"):
            ray_connection.connect(address, never)


def test_who_is_to_stop_awaits_no_control_store() -> None:
    asked = list[None]()

    def stop() -> None:
        asked.append(None)
        if len(asked) == 2:
            raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(KeyboardInterrupt):
            ray_connection.connect(address, stop)


@pytest.mark.parametrize("is_named", [False, True], ids=["not named", "missing"])
def test_tls_of_ray_without_its_files_is_refused_and_said(
    is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    for name in ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"):
        monkeypatch.delenv(name, raising=False)
        if is_named:
            monkeypatch.setenv(name, str(tmp_path / name))
    with pytest.raises(InvalidTask, match="RAY_TLS_SERVER_CERT"):
        ray_connection.connect("127.0.0.1:1", never)
