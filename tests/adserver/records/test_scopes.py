"""Scopes are a ladder."""

from adserver.records.access import Scope


def test_each_scope_allows_what_those_before_it_allow() -> None:
    allowed = [[one.allows(needed) for needed in Scope] for one in Scope]
    assert allowed == [[True] * (1 + most) + [False] * (3 - most) for most in range(4)]
