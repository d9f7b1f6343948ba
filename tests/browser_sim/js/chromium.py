"""A real Chromium for tests: Debian's package, driven by playwright."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, BrowserContext, Playwright, sync_playwright

from tests.programs import find_program

REQUIRED: Final = "MASKEDLARK_REQUIRE_CHROMIUM"
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--ignore-certificate-errors",
)
"""No request leaves this machine; a test's own certificates are taken, in service workers too."""


def chromium_path() -> str:
    """Where Chromium is; the test is skipped where there is none, and fails where one is required."""
    return find_program(
        *_NAMES, variable="MASKEDLARK_CHROMIUM", required=REQUIRED, package="the package chromium"
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser with an empty profile."""
    path = chromium_path()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield launched
        finally:
            launched.close()


def with_profile(playwright: Playwright, folder: Path) -> BrowserContext:
    """A headless browser whose storage lasts in a folder."""
    return playwright.chromium.launch_persistent_context(
        str(folder), executable_path=chromium_path(), args=list(ARGUMENTS), ignore_https_errors=True
    )
