"""The page on installing: its block installs by the lock, and nothing that the lock does not hold."""

import os
import re
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from tests.lock import ROOT
from tests.test_constraints import forged

PAGE = (ROOT / "docs" / "how-to" / "install.md").read_text()


def test_the_page_and_that_of_operations_name_extras_that_exist() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    operations = (ROOT / "docs" / "how-to" / "operations.md").read_text()
    rows = re.findall(r"^\| an? [^|]+ \| (.*) \|$", PAGE, re.M)
    named = re.findall(r"`([a-z,]+)`", " ".join(rows)) + re.findall(r"masked-lark\[([a-z,]+)\]", operations)
    assert len(named) > 4
    assert {extra for one in named for extra in one.split(",")} <= known.keys()


@pytest.mark.parametrize("is_held", [True, False])
def test_the_block_installs_what_the_lock_holds_and_nothing_else(tmp_path: Path, is_held: bool) -> None:
    own = "Provides-Extra: helper\nRequires-Dist: needed; extra == 'helper'\n"
    forged("masked_lark", "7.0", tmp_path, own)
    (packages := tmp_path / "packages").mkdir()
    forged("needed", "2.0", packages)
    forged("pip", "99.0", packages)
    own_pip, needed = (
        sha256((packages / f"{one}-py3-none-any.whl").read_bytes()).hexdigest()
        for one in ("pip-99.0", "needed-2.0")
    )
    (tmp_path / "masked_lark-7.0.lock.txt").write_text(
        f"needed==2.0 \\\n    --hash=sha256:{needed if is_held else '0' * 64}\n"
        f"pip==99.0 \\\n    --hash=sha256:{own_pip}\n"
    )
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    [block] = re.findall(
        r"^    \. /opt/maskedlark/bin/activate\n(.*)    lark-helper warmup$", PAGE, re.M | re.S
    )
    ran = subprocess.run(
        ["/bin/sh", "-ec", block],
        cwd=tmp_path,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "PIP_PYTHON": str(environment / "bin" / "python"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(packages),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    installed = {path.name for path in environment.glob("lib/python*/site-packages/*.dist-info")}
    wanted = {"pip-99.0.dist-info"} | (
        {"masked_lark-7.0.dist-info", "needed-2.0.dist-info"} if is_held else set()
    )
    assert (ran.returncode == 0, installed) == (is_held, wanted), ran.stderr
    assert is_held or "HASHES" in ran.stderr
