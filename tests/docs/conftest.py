"""The longest page begins first."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put it before the others: begun last, it would run on when all other workers have ended."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/docs/test_notebook_tutorial.py"))
