"""Ray between helper and workers with TLS, and certificates as the how-to makes them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra `ray`: make setup-cluster")

from tests.helper.executors.ray_machines import LOOPBACK
from tests.helper.executors.ray_over_tls import environment
from tests.patience import HANGS_S

pytestmark = pytest.mark.long
GROW = Path("docs/how-to/grow.md")
ELSEWHERE = "10.9.8.7"


def commands() -> list[str]:
    """Those of the how-to that make certificates: for an authority, and for a machine of it."""
    lines = [line.strip() for line in GROW.read_text().splitlines()]
    return [line for line in lines if line.startswith("lark-helper cluster ")]


def run(command: str, folder: Path) -> None:
    program, *arguments = command.split()
    subprocess.run([Path(sys.executable).parent / program, *arguments], cwd=folder, check=True)


def certificates(folder: Path, address: str = LOOPBACK) -> Path:
    """An authority in `folder`, unless it is there, and where the certificate of a machine is."""
    authority, machine = commands()
    if not folder.exists():
        folder.mkdir()
        run(authority, folder)
    assert "10.0.0.7" in machine
    run(machine.replace("10.0.0.7", address).replace("machine-7", f"machine-{address}"), folder)
    return folder / f"machine-{address}"


def tried_in(folder: Path) -> dict[str, Any]:
    own, others = certificates(folder / "own"), certificates(folder / "others")
    elsewhere = certificates(folder / "own", ELSEWHERE)
    done = subprocess.run(
        [sys.executable, "-m", "tests.helper.executors.ray_over_tls", folder / "site", others, elsewhere],
        env={**os.environ, **environment(own)},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_with_tls_a_worker_sums_and_no_other_certificate_gets_in(tmp_path: Path) -> None:
    """One test, so that Ray starts once: a machine that does not join takes half a minute."""
    outcome = tried_in(tmp_path)
    assert outcome["is_equal"]
    assert outcome["segments_at_workers"] == 13
    assert outcome["answers_own"]
    assert not outcome["answers_without"]
    assert not outcome["answers_other"]
    assert not outcome["answers_plaintext"]
    assert outcome["machines"] == outcome["after_others"] == 2
    assert outcome["workers_elsewhere"] == 0
