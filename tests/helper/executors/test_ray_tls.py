"""Ray between helper and workers with TLS, and certificates as the how-to makes them."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("ray") is None:
    pytest.skip("needs the extra `ray`: make setup-cluster", allow_module_level=True)
if shutil.which("openssl") is None:
    pytest.skip("needs openssl", allow_module_level=True)

from tests.helper.executors.ray_machines import LOOPBACK
from tests.helper.executors.ray_over_tls import FILES, environment
from tests.patience import HANGS_S

pytestmark = pytest.mark.long
GROW = Path("docs/how-to/grow.md")


def commands() -> str:
    """The commands of the how-to that make certificates."""
    section = GROW.read_text().split("\n### Certificates\n")[1].split("\n## ")[0]
    return "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))


def certificates(folder: Path) -> Path:
    """An authority of its own, and the certificate of a machine at the loopback address."""
    folder.mkdir()
    made = subprocess.run(
        ["/bin/sh", "-eu", "-c", commands()],
        cwd=folder,
        env={**os.environ, "ADDRESS": LOOPBACK},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert {path.name for path in folder.iterdir()} >= set(FILES.values())
    for key in folder.glob("*.key"):
        assert key.stat().st_mode & 0o077 == 0
    return folder


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tls")
    own, others = certificates(folder / "own"), certificates(folder / "others")
    done = subprocess.run(
        [sys.executable, "-m", "tests.helper.executors.ray_over_tls", folder / "site", others],
        env={**os.environ, **environment(own)},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_worker_sums_as_this_machine_does_with_tls_between_them(outcome: dict[str, Any]) -> None:
    assert outcome["is_equal"]
    assert outcome["segments_at_workers"] == 13


def test_rays_control_store_answers_nobody_without_a_certificate_of_its_authority(
    outcome: dict[str, Any],
) -> None:
    assert outcome["answers_own"]
    assert not outcome["answers_without"]
    assert not outcome["answers_other"]
    assert not outcome["answers_plaintext"]


def test_a_machine_with_a_certificate_of_another_authority_does_not_join(outcome: dict[str, Any]) -> None:
    assert outcome["machines"] == outcome["others"] == 2
