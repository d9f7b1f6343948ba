"""Command lines that import a command when it is used, so that their help appears at once.

    app = lazy_app("What it is for.", {"serve": Lazy("party.cli.serve:serve_command")})

The list of commands shows the first paragraph of each function's docstring, read from its file.
"""

import ast
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeGuard

import typer
from typer.core import TyperCommand, TyperGroup

from maskedlark.observability.logs import logs_json

_LOG: Final = logging.getLogger(__name__)


class Lazy(NamedTuple):
    """Where a command is, and the first paragraph of its help.

    Attributes:
        source: `module:name` of a function with typer's annotations, or of a `typer.Typer`; or a group's
            commands, by name.
        help: The line that the list of commands shows; of a function the start of its docstring.
        environment: Each option NAME is also an environment variable PREFIX_NAME of this prefix, if there is
            one and the option names no variable itself.
    """

    source: "str | Mapping[str, Lazy]"
    help: str = ""
    environment: str = ""

    def about(self) -> str:
        """Return the list entry of a command, importing nothing but the packages that it is in."""
        if self.help or not isinstance(self.source, str):
            return self.help
        # Parsed, not imported: a list of commands would otherwise load numpy, SQLAlchemy and gRPC.
        module, _, function = self.source.partition(":")
        found = find_spec(module)
        text = "" if found is None or found.origin is None else Path(found.origin).read_text(encoding="utf-8")
        docs = (ast.get_docstring(one) or "" for one in ast.parse(text).body if _is_called(one, function))
        return next(docs, "").split("\n\n", maxsplit=1)[0]

    def load(self, name: str) -> Any:
        """Import the command, under the name that people type."""
        if not isinstance(self.source, str):
            found: Any = _group(self.help, self.source, _no_options)
        else:
            module, _, attribute = self.source.partition(":")
            found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            group = typer.main.get_group(found)
            group.name = name
            return group
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name, cls=_Command)(found)
        made = typer.main.get_command(alone)
        for one in made.params if self.environment else ():
            one.envvar = one.envvar or f"{self.environment}_{(one.name or '').upper()}"
        return made


def _is_called(statement: ast.stmt, name: str) -> TypeGuard[ast.FunctionDef]:
    return isinstance(statement, ast.FunctionDef) and statement.name == name


class _Command(TyperCommand):
    """A command that logs which option it refuses, if its log is JSON (`log_options`)."""

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Read the options."""
        with _refusals_logged():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; some options are refused only together, by what makes a value of them."""
        with _refusals_logged():
            return super().invoke(ctx)


@contextmanager
def _refusals_logged() -> Iterator[None]:
    try:
        yield
    except typer.BadParameter as refused:
        if not logs_json():  # typer shows it in a box
            raise
        _LOG.error(refused.format_message())
        raise typer.Exit(refused.exit_code) from None


# What other programs call commands of these names, which are spelled nothing like them
_CALLED: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(("stop", "abort", "kill"), ("cancel", "down"))


class NearGroup(TyperGroup):
    """A group that knows its commands by the names that other programs have for them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name; of one that others call so, name it."""
        meant = [one for one in _CALLED.get(args[0] if args else "", ()) if one in self.commands]
        if meant and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant[0]!r}?")
        return super().resolve_command(ctx, args)


class _LazyGroup(NearGroup):
    """A group whose commands are stubs with one line of help until they are looked up."""

    sources: Mapping[str, Lazy] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._loaded: dict[str, Any] = {}
        self._is_listing = False
        # Stubs: typer looks in here for names like one that was mistyped.
        self.commands = {name: TyperCommand(name) for name in self.sources}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order in which they are shown."""
        return list(self.sources)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, imported now unless only its line of help is shown."""
        if cmd_name not in self.sources:
            return self.commands.get(cmd_name)
        if self._is_listing:
            return TyperCommand(cmd_name, help=self.sources[cmd_name].about())
        if cmd_name not in self._loaded:
            self._loaded[cmd_name] = self.sources[cmd_name].load(cmd_name)
        return self._loaded[cmd_name]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the group."""
        # To list commands, click asks for each of them, which would import them all.
        with self._listing():
            super().format_help(ctx, formatter)

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._is_listing = True
        try:
            yield
        finally:
            self._is_listing = False


def lazy_app(about: str, commands: Mapping[str, Lazy]) -> typer.Typer:
    """Create a command line of commands that are imported when they are used, with the option --version.

    Args:
        about: Its help.
        commands: By the name that people type, in the order in which they are shown.
    """
    return _group(about, commands, _version_option)


def _group(about: str, commands: Mapping[str, Lazy], options: Callable[..., None]) -> typer.Typer:
    class Group(_LazyGroup):
        sources = commands

    return typer.Typer(
        cls=Group,
        callback=options,
        no_args_is_help=True,
        # a traceback with its local variables would print features, labels and masks
        pretty_exceptions_enable=False,
        help=about,
    )


def _no_options() -> None:
    """Accept no options: the commands have options, a group of them has none."""


def _print_version(is_asked: bool) -> None:
    # Here, so that no other command pays for the import.
    from importlib.metadata import version

    if is_asked:
        typer.echo(version("masked-lark"))
        raise typer.Exit


def _version_option(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Accept one option, which ends the command before this is called."""
