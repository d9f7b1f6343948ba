"""Draw the picture of links to the site: `python -m tests.docs.card` writes docs/img/card.png."""

from tests.browser_sim.js.chromium import chromium
from tests.docs.reading import ROOT

WIDTH, HEIGHT = 1_200, 630
_PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; padding: 56px 72px; font: 30px/1.4 sans-serif; color: #1c2540; background: #f6f7fb; }}
h1 {{ font-size: 76px; margin: 0 0 8px; }} p {{ margin: 0 0 36px; max-width: 1000px; }}
svg {{ width: 1056px; height: auto; max-height: 330px; box-sizing: border-box; }}
svg {{ background: #fff; border-radius: 16px; padding: 16px; }}
</style><h1>Masked LARk</h1><p>An ad server trains and measures on data that it cannot read.</p>{drawing}"""

if __name__ == "__main__":
    drawing = (ROOT / "docs" / "img" / "system.svg").read_text()
    with chromium() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_content(_PAGE.format(drawing=drawing[drawing.index("<svg") :]))
        page.screenshot(path=ROOT / "docs" / "img" / "card.png")
