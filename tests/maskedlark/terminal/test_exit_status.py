"""A command ends with one line where a part is missing, and with a traceback only at a bug."""

import errno
import importlib.metadata
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.observability.logs import LogFormat, configure_logging
from maskedlark.terminal.exit_status import REFUSED, UNAVAILABLE, how_to_install, run


def ended(app: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    with pytest.raises(SystemExit) as end:
        run(app)
    return end.value.code, capsys.readouterr().err


def refuse(error: BaseException) -> Callable[[], object]:
    def app() -> object:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InvalidTask("no task"), REFUSED, "InvalidTask: no task"),
        (HelperUnavailable("away"), UNAVAILABLE, "HelperUnavailable: away"),
        (
            PermissionError(13, "Permission denied", "/keys"),
            REFUSED,
            "/keys: Permission denied; run this as the owner of the file and its folder",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), REFUSED, "No space left on device"),
        (
            ModuleNotFoundError("none", name="prometheus_client.core"),
            REFUSED,
            "prometheus_client is not installed, and this command needs it: pip install 'masked-lark[",
        ),
    ],
)
def test_what_is_refused_or_missing_is_one_line(
    error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ended(refuse(error), capsys)
    assert code == status
    assert said.startswith(line)
    assert said.count("\n") == 1


def test_a_bug_has_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ended(refuse(ValueError("a bug")), capsys)
    assert (code, "Traceback" in said) == (REFUSED, True)


def test_a_part_that_is_missing_is_named_with_the_extra_of_its_party(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    def app() -> None:
        from adserver.training.inference import check_loads

        check_loads(b"")

    code, said = ended(app, capsys)
    assert code == REFUSED
    assert said == (
        "onnxruntime is not installed, and this command needs it: pip install 'masked-lark[adserver]'\n"
    )


OF_EXTRAS = (
    "alembic anyio fastapi grpc_health h11 httpx jinja2 numba onnx onnxruntime opentelemetry "
    "prometheus_client scipy sqlalchemy starlette tenacity threadpoolctl uvicorn"
)
WITHOUT_EXTRAS = f"""
import sys
from importlib import import_module

sys.modules.update(dict.fromkeys({OF_EXTRAS!r}.split()))
module, *sys.argv[1:] = sys.argv[1:]
import_module(module).main()
"""
RUNS = "--data", "{folder}", "--helper-0", "127.0.0.1:1", "--helper-1", "127.0.0.1:2", "--insecure"


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("adserver.cli.main", ("serve", *RUNS), "adserver"),
        ("adserver.cli.main", ("intake", "--database", "sqlite://", "--insecure"), "adserver"),
        ("adserver.cli.main", ("status", *RUNS), "adserver"),
        (
            "helper.cli.main",
            ("serve", "--data", "{folder}", "--listen", "127.0.0.1:0", "--insecure"),
            "helper",
        ),
        ("helper.cli.main", ("warmup",), "helper"),
        ("maskedlark.terminal.lark", ("adserver", "serve", *RUNS), "adserver"),
    ],
)
def test_without_extras_a_command_names_the_extra_of_its_party(
    module: str, words: Sequence[str], extra: str, tmp_path: Path
) -> None:
    asked = [word.format(folder=tmp_path) for word in words]
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, module, *asked], capture_output=True, text=True, check=False
    )
    assert ran.returncode == REFUSED
    assert ran.stderr.endswith(f", and this command needs it: pip install 'masked-lark[{extra}]'\n"), (
        ran.stderr
    )
    assert ran.stderr.count("\n") == 1


HELPERS = "--helper-0", "127.0.0.1:1", "--helper-1", "127.0.0.1:2"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("helper", "serve", "--listen", "127.0.0.1:0", "--insecure"), REFUSED, "InvalidSetting: "),
        (("helper", "serve", "--listen", "127.0.0.1:0"), 2, "TLS is not configured"),
        (("helper", "serve"), 2, "Missing option '--listen'"),
        (("adserver", "serve", *HELPERS, "--insecure", "--http-listen", "192.0.2.1:1"), REFUSED, "192.0.2.1"),
        (("adserver", "serve", *HELPERS), 2, "TLS is not configured"),
        (("adserver", "intake", "--insecure", "--database", "sqlite:///none"), REFUSED, "has no tables"),
    ],
)
def test_the_line_that_ends_a_failed_start_is_json_as_the_log_is(
    words: Sequence[str], status: int, said: str, tmp_path: Path
) -> None:
    data = () if "intake" in words else ("--data", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-c", "from maskedlark.terminal.lark import main; main()", *words, *data],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "HELPER_LOG_FORMAT": "json", "ADSERVER_LOG_FORMAT": "json"},
    )
    logged = [json.loads(line) for line in ran.stderr.splitlines()]
    assert (ran.returncode, logged[-1]["level"], ran.stdout) == (status, "error", "")
    assert said in logged[-1]["message"]


def test_a_bug_is_one_line_of_a_json_log(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        configure_logging(LogFormat.JSON)
        code, said = ended(refuse(ValueError("a bug")), capsys)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
    assert (code, said.count("\n")) == (REFUSED, 1)
    assert "ValueError: a bug" in json.loads(said)["error"]


def test_keys_are_made_without_extras(tmp_path: Path) -> None:
    asked = ["keygen", "--data", str(tmp_path / "own"), "--origin", "https://ads.example"]
    subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS, "adserver.cli.main", *asked], check=True)
    assert (tmp_path / "own" / "tls.crt").is_file()


@pytest.mark.parametrize(("missing", "name"), [("sqlalchemy", "Client"), ("onnx", "predict")])
def test_what_python_imports_says_what_to_install_too(missing: str, name: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; from adserver import {name}"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: {missing} is not installed, and adserver.{name} needs it: "
        "pip install 'masked-lark[adserver]'"
    )


@pytest.mark.parametrize(
    ("missing", "needed_by", "wanted"),
    [
        ("onnx", "adserver.training.model_file", "masked-lark[adserver]"),
        ("onnx", "helper.core", "masked-lark[helper]"),
        ("httpx", "browser_sim.task_host", "masked-lark[browser]"),
        ("psycopg", "maskedlark.runtime.database", "masked-lark[postgres]"),
        ("grpc_health.v1", "helper.serving.server", "masked-lark[helper]"),
        ("nowhere", "helper.core", "nowhere"),
    ],
)
def test_extras(missing: str, needed_by: str, wanted: str) -> None:
    assert how_to_install(missing, needed_by).endswith(f"pip install '{wanted}'")


def test_the_small_build_of_torch_comes_first_as_the_page_has_it_and_in_the_version_of_the_extra() -> None:
    told = how_to_install("torch", "adserver.training.rehearsal", needs="a rehearsal")
    said, small, whole = re.split(r"pip install ", told)
    small = small.partition(";")[0]
    assert said == "torch is not installed, and a rehearsal needs it: "
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "install.md").read_text()
    assert f"`pip install {small}`" in " ".join(page.split())
    assert "torch==" in small
    assert whole == "'masked-lark[torch]'"


@pytest.mark.parametrize(
    ("missing", "extra"), [("numba", "quickstart"), ("onnx", "quickstart"), ("torch", "torch")]
)
def test_quickstart_names_the_extra_of_all_parties(
    missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = [
        'onnx>=1; extra == "adserver"',
        'numba; extra == "helper"',
        'torch==2; extra == "torch"',
        'masked-lark[adserver,helper]; extra == "quickstart"',
        'masked-lark[quickstart,torch]; extra == "all"',
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: declared)
    assert how_to_install(missing, "adserver.cli.quickstart").endswith(f"pip install 'masked-lark[{extra}]'")
