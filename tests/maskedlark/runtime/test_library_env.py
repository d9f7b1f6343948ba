"""What command lines turn off in libraries: of each process, so every case runs in one of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAINS = ("adserver.cli.main", "browser_sim.cli", "helper.cli.main")
RUN = """
import json, os, sys
from importlib import import_module
main = import_module(sys.argv.pop(1)).main
print(json.dumps(sorted({"numpy", "pydantic"} & sys.modules.keys())))
try:
    main()
except SystemExit:
    print(os.environ["OPENBLAS_THREAD_TIMEOUT"], os.environ["PYDANTIC_DISABLE_PLUGINS"])
"""


def told(main: str, **variables: str) -> list[str]:
    """What a command line without arguments prints: what is loaded before it runs, its help, what it set."""
    given = {
        name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS", "PYDANTIC"))
    }
    ran = subprocess.run(
        [sys.executable, "-c", RUN, main], capture_output=True, text=True, check=True, env=given | variables
    )
    return ran.stdout.splitlines()


@pytest.mark.parametrize("main", MAINS)
def test_a_command_line_settles_libraries_before_they_load(main: str) -> None:
    lines = told(main)
    assert (lines[0], lines[-1]) == ("[]", "4 __all__")


def test_what_is_set_stays() -> None:
    assert told(MAINS[0], OPENBLAS_THREAD_TIMEOUT="26")[-1] == "26 __all__"


@pytest.mark.parametrize("module", ["adserver.training.inference", "helper.gradient.exact.products.int8"])
@pytest.mark.parametrize("asked", [{}, {"ORT_DISABLE_TELEMETRY": "0"}])
def test_onnxruntime_reports_to_nobody(module: str, asked: dict[str, str], tmp_path: Path) -> None:
    # Where it reports, importing it makes this machine an id, and a database of what is to be sent.
    given = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    load = f"import {module}, onnxruntime"
    subprocess.run([sys.executable, "-c", load], check=True, env=given | asked | {"HOME": str(tmp_path)})
    assert not [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name or "deviceid" in path.name]
