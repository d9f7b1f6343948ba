"""The help of a command line appears at once, and says what the commands say of themselves."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import adserver.cli.main
import browser_sim.cli
import helper.cli.main
from maskedlark.terminal.lazy_commands import Lazy, lazy_app
from maskedlark.terminal.options import option

PARTIES = {
    "adserver.cli.main": adserver.cli.main.COMMANDS,
    "helper.cli.main": helper.cli.main.COMMANDS,
    "browser_sim.cli": browser_sim.cli.COMMANDS,
}


def all_in(commands: Mapping[str, Lazy]) -> Iterator[tuple[str, Lazy]]:
    for name, lazy in commands.items():
        yield name, lazy
        if not isinstance(lazy.source, str):
            yield from all_in(lazy.source)


COMMANDS = [one for commands in PARTIES.values() for one in all_in(commands)]
HEAVY = {
    "alembic",
    "dp_accounting",
    "google.protobuf",
    "grpc",
    "httpx",
    "matplotlib",
    "numba",
    "numpy",
    "onnx",
    "onnxruntime",
    "opentelemetry",
    "pandas",
    "pyarrow",
    "pydantic",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "starlette",
    "tenacity",
    "torch",
    "uvicorn",
}
SHOW_HELP = """
import json, sys
from {module} import main
sys.argv = ["it", "--help"]
try:
    main()
except SystemExit:
    print(json.dumps(sorted(sys.modules)))
"""

SHOW_EVERY_HELP = """
import importlib, json, sys
import typer

loaded_by = {}

def show(command, words):
    before = set(sys.modules)
    command.main([*words, "--help"], "it", standalone_mode=False)
    loaded_by[" ".join(words)] = sorted(set(sys.modules) - before)

def below(group, context, words):
    for name in group.list_commands(context):
        show(everything, [*words, name])  # first: this is what imports the command
        one = group.get_command(context, name)
        if hasattr(one, "list_commands"):
            below(one, context, [*words, name])

everything = typer.main.get_command(importlib.import_module(sys.argv[1]).app)
loaded_by[""] = sorted(sys.modules)
below(everything, typer.Context(everything), [])
print(json.dumps(loaded_by))
"""


def paragraph(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split())


def loaded_by_help(module: str) -> tuple[str, set[str]]:
    """What is shown, and the modules that it took."""
    script = SHOW_HELP.format(module=module)
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return shown.stdout, set(json.loads(shown.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", [*PARTIES, "maskedlark.terminal.lark"])
def test_every_program_says_its_version(module: str) -> None:
    result = CliRunner().invoke(import_module(module).app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"{version('masked-lark')}\n")


@pytest.mark.parametrize("module", PARTIES)
def test_help_loads_no_heavy_library_and_no_command(module: str) -> None:
    shown, imported = loaded_by_help(module)
    assert not imported & HEAVY
    assert not imported & {str(lazy.source).partition(":")[0] for _, lazy in all_in(PARTIES[module])}
    assert all(f" {name} " in shown for name in PARTIES[module])


@pytest.mark.parametrize("module", PARTIES)
def test_no_command_s_help_loads_a_heavy_library(module: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", SHOW_EVERY_HELP, module], capture_output=True, text=True, check=True
    )
    loaded_by = json.loads(shown.stdout.splitlines()[-1])
    assert len(loaded_by) > len(PARTIES[module])
    small = {"pydantic"}  # typer needs a small part
    assert {name: set(loaded) & (HEAVY - small) for name, loaded in loaded_by.items()} == {
        name: set() for name in loaded_by
    }


@pytest.mark.parametrize(("name", "lazy"), COMMANDS)
def test_the_list_of_commands_says_what_each_command_says(name: str, lazy: Lazy) -> None:
    assert paragraph(lazy.about()) == paragraph(lazy.load(name).help)


def test_a_command_that_does_not_exist_is_refused_with_those_that_are_near() -> None:
    app = lazy_app("Nothing.", {"serve": Lazy("nowhere:nothing", "Serve."), "show": Lazy("no:no", "Show.")})
    result = CliRunner().invoke(app, ["serv"])
    assert result.exit_code == 2
    assert "serve" in result.output


def test_a_command_that_other_programs_call_otherwise_is_named() -> None:
    for words, meant in (("job stop", "cancel"), ("job kill", "cancel"), ("quickstart stop", "down")):
        result = CliRunner().invoke(adserver.cli.main.app, words.split())
        assert result.exit_code == 2
        assert f"Did you mean '{meant}'?" in result.output
    assert "cancel" not in CliRunner().invoke(adserver.cli.main.app, ["stop"]).output


def test_groups_and_single_commands_keep_the_name_that_people_type() -> None:
    known = {name: lazy.load(name) for name, lazy in adserver.cli.main.COMMANDS.items()}
    assert {name: command.name for name, command in known.items()} == {name: name for name in known}
    context = typer.Context(known["task"])
    assert "create" in known["task"].list_commands(context)


@pytest.mark.parametrize(("variable", "told"), [("PARTY_PORT", "7"), ("OWN", "8"), ("PARTY_OWN_NAME", "1")])
def test_an_option_is_the_environment_variable_of_its_name_unless_it_names_one(
    variable: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy = Lazy(f"{__name__}:_served", "Serve.", environment="PARTY")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[_served.__module__])
    result = CliRunner().invoke(lazy_app("A party.", {"serve": lazy}), ["serve"], env={variable: told})
    assert told in result.stdout.split()


def _served(
    port: Annotated[int, option("Where to serve.")] = 1,
    own_name: Annotated[int, option("What it is called.", envvar="OWN")] = 1,
) -> None:
    typer.echo(f"{port} {own_name}")
