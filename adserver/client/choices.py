"""Names of parameters and choices, and numbers, as people type them in Python."""

import logging
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from numbers import Real
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from maskedlark.encoding.close_names import find_close
from maskedlark.errors import InvalidTask, MaskedLarkError
from maskedlark.model.losses import Loss

_LOG = logging.getLogger(__name__)
_ChoiceT = TypeVar("_ChoiceT", bound=StrEnum)
_P = ParamSpec("_P")
_R = TypeVar("_R")

# What other libraries call a setting
_SYNONYMS: Final = {
    "epochs": "rounds",
    "steps": "rounds",
    "panel": "eval_set",
    "eval_data": "eval_set",
    "validation_data": "eval_set",
    "eps": "epsilon",
    "step_size": "learning_rate",
}
# What other libraries set by a parameter, and a job by the table of its one head
_BY_TABLE: Final = ("pos_weight", "class_weight", "class_weights", "scale_pos_weight")
_TABLE: Final = 'loss=[{"targets": [0, 1], "weights": [1, 5]}]'
# Of settings that have no default, what they may be
_CHOICES: Final = {"loss": Loss}


def suggest_names(function: Callable[_P, _R], shown: str = "") -> Callable[_P, _R]:
    """Let the errors of a function that people call be read by their last lines.

    The TypeError of a wrong parameter says which one was probably meant, or all; that of a missing one lists
    its choices. An error that says what is wrong comes without the frames and causes below it, such as those
    of retries and of gRPC; they are logged at level DEBUG.

    Args:
        function: The function that takes the parameters.
        shown: The name of the function that a person called; by default this one's own.
    """
    shown = shown or function.__name__
    parameters = signature(function).parameters
    takes_more = any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())
    named = [name for name, one in parameters.items() if one.kind is Parameter.KEYWORD_ONLY]

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in [one for one in kwargs if one not in parameters]:
            meant = _find_meant(name, parameters.keys() - kwargs.keys())
            wrong = f"{shown}() has no parameter {name!r}: "
            if name in _BY_TABLE and "loss" in named:
                raise TypeError(f"{wrong}weigh the classes by {_TABLE}, one weight for each label code")
            # Other names may be meant for `**more`, unless one that is needed is missing
            if meant and (not takes_more or parameters[meant].default is Parameter.empty):
                raise TypeError(f"{wrong}did you mean {meant}?")
            if not takes_more:
                raise TypeError(f"{wrong}it takes {', '.join(named)}")
        for name, choices in _CHOICES.items():
            if name in named and parameters[name].default is Parameter.empty and name not in kwargs:
                raise TypeError(f"{shown}() needs {name}: give one of {', '.join(choices)}")
        try:
            return function(*args, **kwargs)
        except MaskedLarkError as error:
            _LOG.debug("%s() failed", shown, exc_info=True)
            raise error.with_traceback(None) from None

    return called


def _find_meant(name: str, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant, such as learning_rate by lr; None if there is none."""
    known = set(known)
    if _SYNONYMS.get(name) in known:
        return _SYNONYMS[name]
    by_initials = {"".join(word[0] for word in one.split("_") if word): one for one in sorted(known)}
    return by_initials.get(name) or find_close(name, sorted(known))


def choose(kind: type[_ChoiceT], option: str, given: str) -> _ChoiceT:
    """Return the member of a name.

    Raises:
        InvalidTask: there is none of this name; the message lists those that there are.
    """
    try:
        return kind(given)
    except ValueError:
        raise InvalidTask(f"{option} must be {' or '.join(kind)}, not {given!r}") from None


def check_numbers(**given: object) -> None:
    """Check that settings are numbers, or None where they are left out.

    Raises:
        InvalidTask: naming the first that is not, such as a number in quotes.
    """
    for name, value in given.items():
        if value is not None and not isinstance(value, Real):
            raise InvalidTask(f"{name} is {value!r}: expected one number")


def check_panels(**given: object) -> None:
    """Check that settings name files of labelled examples, or are None where they are left out.

    Raises:
        InvalidTask: naming the first that does not, such as a file that is not there.
    """
    for name, value in given.items():
        if value is None or (isinstance(value, str | Path) and Path(value).is_file()):
            continue
        wrong = (
            f"{value}: there is no such file"
            if isinstance(value, str | Path)
            else f"of type {type(value).__name__}: expected the path of an .npz file"
        )
        raise InvalidTask(
            f"{name} is {wrong}; `browser-sim encode --csv FILE --encoder ENCODER -o panel.npz` makes one of "
            "a table"
        )
