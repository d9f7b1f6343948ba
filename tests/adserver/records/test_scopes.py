"""Scopes are a ladder."""

from adserver.records.access import Scope


def test_each_scope_allows_what_those_before_it_allow() -> None:
    allowed = [[one.allows(needed) for needed in (Scope.READ, Scope.OPERATE, Scope.TASKS)] for one in Scope]
    assert allowed == [[True, False, False], [True, True, False], [True, True, True]]
