"""`make dashboard-pictures`: pictures of the dashboard for docs/img, of a painted ad server in Chromium."""

import tempfile
from pathlib import Path
from typing import Final

from adserver.ingest.http_server import HttpServer
from tests.adserver.painted import painted
from tests.adserver.visits import PATHS, Shown
from tests.browser_sim.js.chromium import chromium

OUT: Final = Path(__file__).parents[2] / "docs" / "img"
PICTURES: Final = {
    "overview": ("overview", "light", "main section:last-of-type"),
    "job": ("job", "light", "#charts"),
    "job-dark": ("job", "dark", "#charts"),
    "budget": ("budget", "light", "section:has(#forecast)"),
    "evaluation": ("evaluation", "dark", "#answer"),
}
"""The name of each file, the page on it, its theme, and the last part of the page that is whole on it."""
_MARGIN: Final = 12


def main() -> None:
    """Take every picture anew."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        of = painted(Path(folder) / "adserver")
        with of.door() as door:
            server = HttpServer(door, "127.0.0.1:0", None, headers=())
            try:
                server.wait_until_started()
                shown = Shown(of=of, browser=browser, server=server)
                for name, (page, theme, last) in PICTURES.items():
                    context = browser.new_context(
                        color_scheme="dark" if theme == "dark" else "light",
                        viewport={"width": 1200, "height": 760},
                    )
                    visit = shown.visit(context)
                    visit.open(PATHS[page])
                    visit.page.wait_for_load_state("load")
                    box = visit.page.locator(last).last.bounding_box()
                    assert box is not None
                    height = round(box["y"] + box["height"]) + _MARGIN
                    # The bar at the side is as high as the window
                    visit.page.set_viewport_size({"width": 1200, "height": height})
                    visit.page.screenshot(path=str(OUT / f"dashboard-{name}.png"))
                    context.close()
            finally:
                server.stop()
        of.close()


if __name__ == "__main__":
    main()
