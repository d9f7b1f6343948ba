"""A typing error costs nothing: no folder is made, and a job that goes on is named."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adserver.cli import job as module
from adserver.cli.main import app
from maskedlark.errors import InvalidTask


@pytest.mark.parametrize(
    "command", [("job", "list"), ("budget",), ("dataset", "list"), ("status",), ("task", "create")]
)
def test_a_mistyped_folder_is_not_made(command: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "adsever"
    options = ["--data", str(folder)]
    if command[0] == "status" or command[-1] == "create":
        options += ["--helper-0", "127.0.0.1:1", "--helper-1", "127.0.0.1:2", "--insecure"]
    if command[-1] == "create":
        options += ["--name", "t", "--origin", "https://a.example", "--num-features", "1", "--classes", "2"]
        options += ["--min-batch-size", "1", "--clip-norm", "1", "--epsilon", "1"]
    done = CliRunner().invoke(app, [*command, *options])
    assert isinstance(done.exception, InvalidTask), done.output
    assert "adsever does not exist: correct --data" in str(done.exception)
    assert not folder.exists()


def test_ctrl_c_says_that_the_job_goes_on_and_how_to_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Found:
        job_id = bytes(16)

    def interrupted(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("adserver.client.local.LocalAdServer.job", lambda *_: Found())
    monkeypatch.setattr("adserver.views.job.watch", interrupted)
    done = CliRunner().invoke(app, ["job", "watch", "--data", str(tmp_path)])
    assert done.exit_code == module.INTERRUPTED
    assert "goes on at the ad server" in done.output
    assert "`adserver job cancel 000000000000` stops it" in done.output


def test_a_helpers_folder_becomes_no_ad_servers(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{}")
    done = CliRunner().invoke(app, ["task", "list", "--data", str(tmp_path)])
    assert "is a helper's folder" in str(done.exception)
    assert [one.name for one in tmp_path.iterdir()] == ["keys.json"]
