"""Warnings of environment variables that look like an option of a party and are none.

A misspelt limit would otherwise be ignored without a word.
"""

import logging
import os
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final

import typer

_LOG: Final = logging.getLogger(__name__)
# What Kubernetes and Docker set for a service whose name starts as the variables of a party do
_OF_A_SERVICE: Final = re.compile(
    r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?$"
)
# Letters that look like digits
_ALIKE: Final = str.maketrans("OIL", "011")
_OF_A_PORT: Final = re.compile(r"(tcp|udp|sctp)://")


def warn_of_unknown_variables(
    app: typer.Typer,
    prefix: str,
    others: Collection[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Log a warning for each variable that begins with a party's prefix and that no option of it has.

    Args:
        app: The party's commands.
        prefix: How its variables begin, with the underscore.
        others: Variables that are read elsewhere.
        environment: The variables; no value is logged.
    """
    of_party = [name for name in environment if name.startswith(prefix) and name not in others]
    known = _variables(typer.main.get_command(app)) if of_party else set()
    for name in sorted(set(of_party) - known):
        if _OF_A_SERVICE.search(name) or (name.endswith("_PORT") and _OF_A_PORT.match(environment[name])):
            continue
        alike = [one for one in sorted(known) if one.translate(_ALIKE) == name.translate(_ALIKE)]
        near = alike or get_close_matches(name, sorted(known), n=1, cutoff=0.8)
        _LOG.warning(
            "ignored the variable %s, which is of no option%s",
            name,
            f": did you mean {near[0]}?" if near else "",
        )


def _variables(command: Any) -> set[str]:
    """Return the variables of all options of a command, and of those below it."""
    found = {one.envvar for one in command.params if isinstance(one.envvar, str)}
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        found.update(
            *(_variables(command.get_command(context, one)) for one in command.list_commands(context))
        )
    return found
