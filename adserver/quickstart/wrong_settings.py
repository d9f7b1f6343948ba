"""Every setting of `lark.toml` that has a wrong name, type or range, with what was expected of it.

settings, wrong = read_settings(tomllib.loads(text))
wrong[0].text       # "[model] hiden is no setting: did you mean hidden?"
"""

import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from adserver.quickstart.settings import Servers, Settings
from maskedlark.encoding.close_names import find_close
from maskedlark.frozen import frozen

_MOST_SHOWN: Final = 60
# Where what a project does not set is set
_ELSEWHERE: Final = {
    ("federated", "strategy"): "a project's devices train with dp-fedavg, and other strategies are for "
    "`adserver job submit --strategy`: see docs/tutorial/federated.md and docs/reference/strategies.md"
}
_KINDS: Final = {
    "number": "a number",
    "integer": "a whole number",
    "string": 'a text in quotes, ""',
    "boolean": "true or false",
    "object": "a section of settings",
}
# Of lists, by the type of their entries
_EXAMPLES: Final = {
    "integer": "32",
    "number": "0.5",
    "string": '"NAME"',
    "object": '{column = "NAME", most = 100}',
}
# Servers have no defaults: what is checked next to wrong ones needs some
_ANY_SERVERS: Final = Servers(
    helper_0="127.0.0.1:1", helper_1="127.0.0.1:2", adserver_grpc="127.0.0.1:3", adserver_http="127.0.0.1:4"
)


@frozen
class WrongSetting:
    """A setting that cannot be read.

    Attributes:
        text: What is wrong, what was expected, and where.
        hides: The names of the section and setting of which the value is not known.
    """

    text: str
    hides: frozenset[str]

    def may_cause(self, problem: str) -> bool:
        """Return whether a problem may come from the default that stands in for this setting."""
        return not self.hides.isdisjoint(re.findall(r"\w+", problem))


def read_settings(said: Mapping[str, Any]) -> tuple[Settings, tuple[WrongSetting, ...]]:
    """Return the settings of a file, and all that are wrong; these have their defaults."""
    adapter = TypeAdapter(Settings)
    readable, wrong = deepcopy(dict(said)), list[WrongSetting]()
    try:
        return _read(adapter, said), ()
    except ValidationError as error:
        schema = adapter.json_schema()
        for one in error.errors(include_url=False):
            wrong.append(_describe(schema, one))
            _remove(readable, one["loc"])
    for without in (readable, {**readable, "servers": asdict(_ANY_SERVERS)}):
        try:
            return _read(adapter, without), tuple(wrong)
        except ValidationError:
            continue
    return Settings(servers=_ANY_SERVERS), tuple(wrong)


def _read(adapter: TypeAdapter[Settings], said: Mapping[str, Any]) -> Settings:
    # As JSON: there pydantic takes text for a choice and a list for a tuple, but no "3" for a number.
    # A date, which JSON lacks, becomes an object, which no setting is.
    return adapter.validate_json(json.dumps(said, default=lambda one: {"date": str(one)}))


def _remove(said: dict[str, Any], place: tuple[int | str, ...]) -> None:
    """Remove a setting; of a list, the one name in an entry that is wrong, or else the whole list."""
    section = said.get(str(place[0]))
    if len(place) == 1 or not isinstance(section, dict):
        said.pop(str(place[0]), None)
        return
    name, entry = str(place[1]), place[2:]
    # Gone already where another entry of the list is wrong as a whole
    entries = section.get(name, [])
    if len(entry) == 2 and entries and entry[1] in entries[entry[0]]:
        del entries[entry[0]][entry[1]]
    else:
        section.pop(name, None)


def _describe(schema: Mapping[str, Any], error: Any) -> WrongSetting:
    place, kind, given = error["loc"], error["type"], error["input"]
    where = _name(place)
    hides = {str(place[1] if len(place) > 1 else place[0])}
    if kind == "unexpected_keyword_argument":
        known = _find(schema, place[:-1])["properties"]
        close = find_close(str(place[-1]), known)
        # The value that was meant for it is not known
        hides |= {close} if close else set()
        what = "setting" if len(place) > 1 else "section"
        names = [f"[{one}]" if len(place) == 1 else one for one in ([close] if close else known)]
        remedy = f"did you mean {names[0]}?" if close else f"there are {', '.join(names)}"
        remedy = _ELSEWHERE.get(place, remedy)
        return WrongSetting(text=f"{where} is no {what}: {remedy}", hides=frozenset(hides))
    if kind == "value_error":
        return WrongSetting(text=f"{where}: {error['ctx']['error']}", hides=frozenset(hides))
    expected = _find(schema, place)
    if kind == "missing":
        text = f"{where} is missing: set it to {_expected(expected)}"
    else:
        is_out_of_range = kind.startswith(("greater_than", "less_than"))
        wanted = _range(expected) if is_out_of_range else _expected(expected)
        wanted = "a finite number" if kind == "finite_number" else wanted
        is_quoted = expected.get("type") in ("number", "integer", "boolean") and isinstance(given, str)
        remedy = f": write {given} without quotes" if is_quoted and _is_bare_toml(given) else ""
        text = f"{where} is {_show(given)}, but must be {wanted}{remedy}"
    return WrongSetting(text=text, hides=frozenset(hides))


def _is_bare_toml(text: str) -> bool:
    return bool(re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?|true|false", text))


def _name(place: Iterable[int | str]) -> str:
    section, *rest = place
    steps = [f"entry {step + 1}" if isinstance(step, int) else step for step in rest]
    return f"[{section}] {', '.join(steps)}".rstrip()


def _show(given: object) -> str:
    shown = json.dumps(given, ensure_ascii=False, default=str)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."


def _find(schema: Mapping[str, Any], place: Iterable[int | str]) -> Mapping[str, Any]:
    """Return the part of a JSON schema that describes a setting."""
    found = _resolve(schema, schema)
    for step in place:
        found = _resolve(schema, found["items"] if isinstance(step, int) else found["properties"][step])
    return found


def _resolve(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    # A setting that may be left out is one of its type or null, which TOML cannot say
    part = part.get("anyOf", [part])[0]
    resolved: Mapping[str, Any] = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    return resolved


def _expected(part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return f"one of {', '.join(map(_show, part['enum']))}"
    if "pattern" in part:
        return str(part["description"])
    if part["type"] == "array":
        entries = part["items"]
        if "pattern" in entries:
            return f"a list of {entries['description']}"
        return f"a list, such as [{_EXAMPLES[entries.get('type', 'object')]}]"
    return ", ".join(filter(None, (_KINDS[part["type"]], _range(part))))


def _range(part: Mapping[str, Any]) -> str:
    low, high = part.get("minimum"), part.get("maximum")
    above, below = part.get("exclusiveMinimum"), part.get("exclusiveMaximum")
    if above is not None and below is not None:
        return f"between {above:g} and {below:g}"
    if low is not None and high is not None:
        return f"from {low} to {high}"
    return " and ".join(
        f"{word} {bound:g}"
        for word, bound in (("above", above), ("at least", low), ("below", below), ("at most", high))
        if bound is not None
    )
