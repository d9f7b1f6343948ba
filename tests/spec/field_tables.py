"""The fields of canonical objects as the specification's tables spell them.

`python -m tests.spec.field_tables Task LabelSpace` prints the tables of these objects; a test compares those
that the pages hold with today's code.
"""

import sys
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Len, Lt, MaxLen, MinLen
from pydantic import AfterValidator
from pydantic.fields import FieldInfo

from maskedlark.model.heads import Head, Heads
from maskedlark.releases.counting import Condition
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.job import JobSpec
from maskedlark.releases.query import Axis, Measure, QuerySpec
from maskedlark.releases.statement import Evidence, ReleaseStatement, SignedStatement
from maskedlark.releases.update import Phase, UpdateJob, UpdateRound, UpdateSpec
from maskedlark.reports.measurement import Key, Measurement, Value
from maskedlark.reports.sealing import HpkeKey, KeyList, SignedKeyList
from maskedlark.reports.task import HelperIdentity, LabelSpace, Task, TaskBundle
from maskedlark.reports.updates import UpdateForm

OBJECTS: Final[dict[str, type[Any]]] = {
    cls.__name__: cls
    for cls in (
        Task,
        LabelSpace,
        HelperIdentity,
        Measurement,
        Value,
        Key,
        UpdateForm,
        TaskBundle,
        SignedKeyList,
        KeyList,
        HpkeKey,
        JobSpec,
        Heads,
        Head,
        QuerySpec,
        Measure,
        Axis,
        Condition,
        DiscoverySpec,
        EvaluationSpec,
        UpdateJob,
        Phase,
        UpdateRound,
        UpdateSpec,
        ReleaseStatement,
        SignedStatement,
        Evidence,
    )
}
HEAD: Final = "| field | value | written |\n|---|---|---|"


def table(cls: type[Any]) -> str:
    """The table of one object."""
    fields: dict[str, FieldInfo] = cls.__pydantic_fields__
    rows = [f"| `{name}` | {_value(one)} | {_written(one)} |" for name, one in sorted(fields.items())]
    return "\n".join([HEAD, *rows])


def _value(one: FieldInfo) -> str:
    return _type(one.annotation, one.metadata)


def _written(one: FieldInfo) -> str:
    if one.exclude_if is None:
        return "always"
    default = one.default.value if isinstance(one.default, Enum) else one.default
    return f"unless {_spelled(default)}"


def _spelled(value: Any) -> str:
    return (
        {None: "null", True: "true", False: "false"}.get(value, str(value))
        if isinstance(value, bool | NoneType)
        else str(value)
    )


def _type(kind: Any, metadata: list[Any]) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if hasattr(kind, "__metadata__"):
        return _type(arguments[0], [*arguments[1:], *metadata])
    metadata = [part for one in metadata for part in (one.metadata if isinstance(one, FieldInfo) else [one])]
    if origin in (Union, UnionType):
        return ", or ".join("null" if one is NoneType else _type(one, metadata) for one in arguments)
    if origin is Literal:
        return f"integer {arguments[0]}"
    if origin is tuple:
        length = _length(metadata) if arguments[-1] is Ellipsis else f"{len(arguments)}: "
        return f"list of {length}{_type(arguments[0], [])}"
    return _scalar(kind, metadata)


def _scalar(kind: Any, metadata: list[Any]) -> str:
    if kind is bytes:
        return f"bytes, {_length(metadata).removesuffix(': ')}"
    if kind is str:
        return _text(metadata)
    if kind in (int, float):
        return _number(kind, metadata)
    if issubclass(kind, Enum):
        return "one of " + ", ".join(f"`{one.value}`" for one in kind)
    return "true or false" if kind is bool else f"`{kind.__name__}`"


def _length(metadata: list[Any]) -> str:
    least, most = 0, None
    for one in metadata:
        if isinstance(one, Len):
            least, most = one.min_length, one.max_length
        if isinstance(one, MinLen):
            least = one.min_length
        if isinstance(one, MaxLen):
            most = one.max_length
    if most is None:
        return f"{least} or more: "
    return f"{most}: " if least == most else f"{least} to {most}: "


def _text(metadata: list[Any]) -> str:
    pattern = next((one.pattern for one in metadata if getattr(one, "pattern", None)), None)
    if pattern is not None:
        return f"text that matches `{pattern}`"
    length = _length(metadata).removesuffix(": ")
    named = (
        " in the spelling of an origin" if any(isinstance(one, AfterValidator) for one in metadata) else ""
    )
    return f"text of {length} characters{named}"


def _number(kind: Any, metadata: list[Any]) -> str:
    words = []
    for one in metadata:
        if isinstance(one, Ge):
            words.append(f"at least {one.ge}")
        if isinstance(one, Gt):
            words.append(f"above {one.gt}")
        if isinstance(one, Le):
            words.append(f"at most {one.le}")
        if isinstance(one, Lt):
            words.append(f"below {one.lt}")
    return ", ".join(["integer" if kind is int else "float", *words])


if __name__ == "__main__":
    for name in sys.argv[1:] or OBJECTS:
        print(f"### {name}\n\n{table(OBJECTS[name])}\n")
