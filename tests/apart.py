"""Runs coroutines where no event loop runs: the thread that drives Chromium has one of its own."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")


def run_apart(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """What `asyncio.run` gives, in a thread of its own."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, coroutine).result()
