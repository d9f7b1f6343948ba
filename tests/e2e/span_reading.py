"""Spans as `--traces console` writes them, among whatever else a process says."""

import json
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One part of a trace; without a parent it is the first. Of a call: whether it was answered."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    is_answered: bool


def spans_in(said: str) -> list[Span]:
    """All spans in a process's output.

    JSON objects over several lines, that begin and end with a brace on a line of its own.
    """
    found = [json.loads(text) for text in re.findall(r"^\{\n.*?^\}$", said, re.MULTILINE | re.DOTALL)]
    return [
        Span(
            name=one["name"].rpartition("/")[2],
            trace_id=one["context"]["trace_id"],
            span_id=one["context"]["span_id"],
            parent_id=one["parent_id"],
            is_answered=one["attributes"].get("rpc.response.status_code") == "OK",
        )
        for one in found
    ]
