"""What is named as a secret is in no repr of a dataclass, whoever adds one: errors and logs show reprs."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Iterator
from typing import Any, Final

import pytest

import adserver
import browser_sim
import helper
import maskedlark

_SECRET: Final = re.compile(r"(^|_)(key|secret|seed|token|blind|password)$")
_PUBLIC: Final = {
    "adserver.store.paging.PageMarker.key",  # where a page of a list begins
    "helper.releases.statements.Statements.verify_key",
    "maskedlark.reports.sealing.HpkeKey.public_key",
    "maskedlark.reports.sealing.KeyList.verify_key",
    "maskedlark.reports.task.HelperIdentity.agreement_key",
    "maskedlark.reports.task.HelperIdentity.verify_key",
}

_PUBLIC_ARRAYS: Final = {  # what a helper tells the ad server of each report
    "helper.datasets.preparing.PreparedReports.is_admitted",
    "maskedlark.reports.dataset.AdmittedSet.is_admitted",
    "maskedlark.reports.dataset.AdmittedSet.view_tags",
    "maskedlark.reports.proofs.check.ProofTable.others",  # digests that are compared
}


def classes() -> Iterator[type[Any]]:
    for package in (adserver, browser_sim, helper, maskedlark):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "ray" in info.name or info.name.endswith("__main__"):
                continue  # the extra `ray`, and what runs when it is imported
            module = importlib.import_module(info.name)
            for one in vars(module).values():
                if (
                    inspect.isclass(one)
                    and one.__module__ == module.__name__
                    and dataclasses.is_dataclass(one)
                ):
                    yield one


def fields() -> Iterator[tuple[str, dataclasses.Field[Any], str]]:
    """Each field's name with its class's, itself, and its type as text."""
    for one in classes():
        try:
            types = typing.get_type_hints(one)
        except NameError:  # a type that only a type checker imports
            types = {}
        for field in dataclasses.fields(one):
            yield (
                f"{one.__module__}.{one.__qualname__}.{field.name}",
                field,
                str(types.get(field.name, field.type)),
            )


@pytest.fixture(scope="module")
def shown() -> list[tuple[str, str]]:
    """What reprs show, with its type."""
    return [(name, kind) for name, field, kind in fields() if field.repr]


def test_no_answer_and_no_array_of_peoples_data_is_shown(shown: list[tuple[str, str]]) -> None:
    answers = {name for name, kind in shown if name.endswith(".answer") and "Future" not in kind}
    assert answers == set()
    held = {
        name
        for name, kind in shown
        if re.search(r"ndarray|SplitExample|MeasuredValues|PairKey|list\[bytes\]|Sequence\[bytes\]", kind)
        and name.startswith(("helper.datasets", "helper.releases", "helper.trust", "maskedlark.re"))
    }
    assert held == _PUBLIC_ARRAYS


def test_no_bytes_that_are_named_as_a_secret_are_shown(shown: list[tuple[str, str]]) -> None:
    secrets = {name for name, kind in shown if "bytes" in kind and _SECRET.search(name)}
    assert secrets - _PUBLIC == set()
