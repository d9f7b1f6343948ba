"""Options of a command line, with their help first, in the panels in which `--help` shows them.

floors = panel("Floors")

def serve_command(min_decoys: Annotated[int, floors("Fewest decoy labels in a report.", min=1)] = 1): ...
"""

from collections.abc import Callable, Collection
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer
from typer.models import ArgumentInfo

_T = TypeVar("_T")
ADDRESS: Final = "HOST:PORT"
"""The metavar of an option whose value is one, which is checked."""
_PORTS: Final = 1 << 16
Declare = Callable[..., Any]
"""Declares an option, to stand in `Annotated`: its help, its names if they are not the parameter's, and
what else `typer.Option` takes."""


def panel(title: str | None = None) -> Declare:
    """Declare options of one panel of the help; without a title, of the first."""

    def declare(about: str, *names: str, **settings: Any) -> Any:
        if settings.get("metavar") == ADDRESS:
            settings["callback"] = _check_address
        shown = about.replace("[", r"\[")  # what stands in brackets is no markup
        return typer.Option(*names, help=shown, rich_help_panel=title, **settings)

    return declare


option: Final = panel()


def _check_address(address: str | None) -> str | None:
    """Return an option's value, or refuse it: without its host, a port would be taken for a host's name."""
    host, _, port = (address or "").rpartition(":")
    if address is not None and not (host and port.isdecimal() and int(port) < _PORTS):
        raise typer.BadParameter(
            f"{address!r} is not {ADDRESS}, such as 127.0.0.1:8443: "
            + ("HOST: is missing" if address.strip(":").isdecimal() else "expected a port from 0 to 65535")
        )
    return address


def making(made: type[_T], **options: Any) -> Callable[..., _T]:
    """Build a maker of a plain value for `takes`, with options for its fields' types and defaults.

    limits_of = making(Limits, rounds=option("Most rounds.", min=1), seconds=option("Most time."))
    """
    fields, types = signature(made).parameters, get_type_hints(made)

    def maker(**given: Any) -> _T:
        return made(**given)

    maker.__signature__ = Signature(  # type: ignore[attr-defined]  # `takes` reads it
        [
            fields[name].replace(annotation=Annotated[types[name], declared])
            for name, declared in options.items()
        ]
    )
    return maker


def _require_an_option(command: Callable[..., Any], shared: Parameter) -> None:
    """Refuse an argument by position that a maker would take for its option of the same name."""
    declared = getattr(shared.annotation, "__metadata__", ())
    if any(isinstance(one, ArgumentInfo) for one in declared):
        raise TypeError(
            f"{shared.name!r} of {command.__qualname__} is an argument, and a maker has an option of that "
            "name: rename the argument's parameter"
        )


def takes(
    *, without: Collection[str] = (), **makers: Callable[..., Any]
) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Replace some parameters of a command or maker with the options from which their values are made.

        @takes(tls=tls_files)
        def status_command(*, address: str, tls: TlsFiles) -> None: ...

    A maker's parameter that the command or an earlier maker declares too is one option for both. What is made
    may be annotated by a name in quotes, of a class that the command's module does not import: help does
    without it.

    Args:
        without: Parameters of makers that are no option of this command: they have their defaults.
        makers: By the name of the parameter.

    Raises:
        TypeError: an argument of the command has the name of a maker's option: what is typed would be both.
    """

    def decorate(command: Callable[..., _T]) -> Callable[..., _T]:
        said = signature(command)
        own = said.parameters.keys() - makers.keys()
        needed = {
            name: {one: p for one, p in signature(maker).parameters.items() if one not in without}
            for name, maker in makers.items()
        }
        for name in own & {one for each in needed.values() for one in each}:
            _require_an_option(command, said.parameters[name])
        parameters: list[Parameter] = []
        for name, one in said.parameters.items():
            made = list(needed[name].values()) if name in needed else [one]
            taken = {each.name for each in parameters} | (own if name in needed else set())
            new = [each for each in made if each.name not in taken]
            # By keyword, because options without a default may then follow those with one.
            parameters += [each.replace(kind=Parameter.KEYWORD_ONLY) for each in new]

        @wraps(command)
        def with_options(**given: Any) -> Any:
            made = {
                name: makers[name](**{each: given[each] for each in needed[name] if each in given})
                for name in makers
            }
            return command(**{name: given[name] for name in own if name in given}, **made)

        with_options.__signature__ = said.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
        # typer reads the annotations too, and they would be those of the command that is wrapped.
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_options

    return decorate
