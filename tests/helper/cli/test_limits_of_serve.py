"""What an operator says of memory and disk reaches the helper that serves."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helper.cli.main import app
from helper.serving import server
from helper.serving.server import HelperSettings
from helper.trust.floors import MOST_HELD_BYTES, PREPARED_BYTES
from maskedlark.interrupt import never
from tests.helper.parties import Party

LISTEN = ["serve", "--listen", "127.0.0.1:0", "--insecure"]


@pytest.mark.parametrize(
    ("asked", "preparing", "held"),
    [
        ([], PREPARED_BYTES, MOST_HELD_BYTES),
        (["--max-preparing-bytes", "1000", "--max-held-bytes", "2000"], 1_000, 2_000),
    ],
)
def test_limits_of_memory_and_disk_reach_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], preparing: int, held: int
) -> None:
    party, given = Party(data=tmp_path / "north"), list[HelperSettings]()
    monkeypatch.setattr(server, "serve", lambda settings, _: given.append(settings))
    result = CliRunner().invoke(app, [*LISTEN, "--data", str(party.data), *asked])
    assert result.exit_code == 0, result.output
    with ExitStack() as stack:
        core = server._open_core(given[0], stack, never)
        assert (core.datasets.prepared.capacity_bytes, core.quota._most_bytes) == (preparing, held)
        assert core.datasets.prepared is core.sweeper.prepared
        assert core.datasets.vault._quota is core.quota


def test_a_helper_that_holds_nothing_for_anybody_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*LISTEN, "--data", str(tmp_path), "--max-held-bytes", "0"])
    assert result.exit_code == 2
    assert "--max-held-bytes" in result.output
