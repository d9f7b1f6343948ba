"""Which places a run can crash at, by reading the product's code.

Every transaction, and every file that is written.

`tests.simulation.stores` names the points that a run passes after the code that stands there. Here the same
names come from the source, so that a transaction that somebody adds, and that no run ever reaches, is
noticed.
"""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Final

from adserver.store import datasets, queries, receipts, reports, rounds, tasks
from adserver.store import jobs as job_store
from adserver.store import leases as job_leases
from helper.ledger import ledger

_MODULES: Final = (ledger, datasets, job_leases, job_store, queries, receipts, reports, tasks)
_AROUND_TRANSACTIONS: Final = ("before begin", "before commit", "after commit")
_AIMED_AT_ONCE: Final = 6
_AROUND_FILES: Final = ("before", "after")
_FILES: Final = (
    "Vault.commit",
    "Witness.write",
    "write checkpoint.npz",
    "write keys.json",
)
_SETTING_UP: Final = frozenset({"Ledger.add_task", "TaskStore.add"})
"""A task is made while an operator looks on, before anything can go wrong here.

Making it again commits nothing.
"""

_OWN_ACTS: Final = frozenset({"Ledger.log", "Ledger.log_change"})
"""What a helper logs of its starts and of refusals, in its service: here its core is called."""

_NEVER_HERE: Final = frozenset({"RoundStore.begin_again"})
"""A round begins again only where both helpers admit no update, which takes forged ones."""


@cache
def expected() -> frozenset[str]:
    """The names of all points."""
    transactions = {name for module in _MODULES for name in _with_transactions(module)}
    transactions -= _SETTING_UP | _OWN_ACTS
    return frozenset(
        {f"{name}: {when}" for name in transactions for when in _AROUND_TRANSACTIONS}
        | {f"{name}: {when}" for name in _FILES for when in _AROUND_FILES}
    )


@cache
def of_updates() -> frozenset[str]:
    """The names of all points that federated rounds alone pass, and of what they share with other jobs."""
    transactions = {*_with_transactions(rounds), "Ledger._reserve", "Ledger.add_dataset"} - _NEVER_HERE
    files = ("Vault.commit", "write checkpoint.npz")
    return frozenset(
        {f"{name}: {when}" for name in transactions for when in _AROUND_TRANSACTIONS}
        | {f"{name}: {when}" for name in files for when in _AROUND_FILES}
    )


def aimed_at(seed: int, among: frozenset[str] | None = None) -> frozenset[str]:
    """The points that the run of a seed crashes at if it passes them.

    A few, far from each other; all of them in two dozen seeds.
    """
    points = sorted(among or expected())
    apart = -(-len(points) // _AIMED_AT_ONCE)
    return frozenset(points[(seed + apart * place) % len(points)] for place in range(_AIMED_AT_ONCE))


def _with_transactions(module: ModuleType) -> Iterator[str]:
    """The qualified names of a module's functions that begin a transaction."""
    tree = ast.parse(inspect.getsource(module))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from (
                f"{node.name}.{part.name}"
                for part in node.body
                if isinstance(part, ast.FunctionDef) and _begins(part)
            )
        elif isinstance(node, ast.FunctionDef) and _begins(node):
            yield node.name


def _begins(function: ast.FunctionDef) -> bool:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(
        isinstance(called, ast.Attribute) and called.attr == "begin" and not _is_store(called.value)
        for called in calls
    )


def _is_store(called: ast.expr) -> bool:
    """Whether it is another object's method of that name: `begin` of an engine only is a transaction."""
    name = (
        called.attr
        if isinstance(called, ast.Attribute)
        else called.id
        if isinstance(called, ast.Name)
        else ""
    )
    return not name.endswith("engine")
