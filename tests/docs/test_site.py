"""The site in a real browser, at a phone's width and a desk's; and README as an index shows it."""

import json
import re
import runpy
import tomllib
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from markdown import markdown as html_of
from playwright.sync_api import Page
from readme_renderer import markdown

from docs.build_site import build
from tests.browser_sim.js.chromium import chromium
from tests.docs.reading import BLOCK, ROOT

README = (ROOT / "README.md").read_text()
WIDEST = 84
"""Characters of a line of code that a site of 1,280 px shows without a scroll bar."""
INDEX = (ROOT / "docs" / "index.md").read_text()
WIDTHS = (390, 1_280)
ELEMENTS = {
    "a",
    "blockquote",
    "br",
    "code",
    "div",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "hr",
    "img",
    "li",
    "ol",
    "p",
}
ELEMENTS |= {"pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}
"""What pages are made of. Any other is a formula's `<a, b>` outside a code span, which no browser shows."""
A4_WIDTH = 718
"""Pixels that a browser's margins leave of a page."""
FIRST_FOUND = {
    "rotate": "lark-helper keys rotate",
    "floors": "Operate a helper",
    "GDPR": "kept of a person",
    "train on my own csv": "Your own table, in two commands",
    "budget": "Plan and watch a budget",
    "export model to onnx": "Bring a model from PyTorch or scikit-learn, and take it away",
    "rényi": "Proofs of differential privacy",
    "license": "Licence",
}
"""What someone types, and words of what comes first: a page that says what to do, before a decision."""

FOUND_EARLY = {
    "revenue by campaign": ["tutorial/sums"],
    "run a helper": ["how-to/containers", "how-to/operations"],
    "who can read my data": ["explanation/threat-model"],
    "what is protected": ["explanation/threat-model", "explanation/privacy"],
    "deploy two helpers": ["how-to/containers", "how-to/kubernetes"],
    "pytorch model": ["how-to/onnx"],
    "federated learning": ["tutorial/federated"],
    "how much budget is left": ["how-to/budget"],
    "restore after a crash": ["how-to/backup"],
    "--min-batch-size-floor": ["reference/cli-helper"],
    "min batch size floor": ["reference/cli-helper"],
    "--trusted-proxy": ["reference/cli-adserver/serve", "reference/cli-adserver/intake"],
    "trusted-proxy": ["reference/cli-adserver/serve", "reference/cli-adserver/intake"],
    "--csv": ["reference/cli-browser-sim", "reference/cli-adserver/quickstart"],
    "differential privacy proof": ["explanation/privacy-proofs"],
    "proof of privacy": ["explanation/privacy-proofs"],
    "collusion": ["explanation/threat-model"],
    "k-anonymity": ["glossary", "explanation/privacy"],
    "missing values": ["how-to/own-data"],
    "categorical features": ["how-to/own-data"],
    "train on csv": ["tutorial/quickstart"],
    "sklearn model": ["how-to/onnx"],
    "min_batch_size": ["reference/task"],
    "collusion_epsilon": ["reference/task"],
    "Client.train": ["reference/api/client"],
    "budget exhausted": ["how-to/budget"],
    "reset budget": ["how-to/budget"],
    "delete a user's data": ["explanation/evidence"],
    "data retention": ["explanation/evidence"],
    "port already in use": ["how-to/symptoms"],
    "wire format": ["spec/index"],
    "user id": ["explanation/privacy", "how-to/own-data"],
    "anonymise": ["explanation/threat-model"],
    "unlinkability": ["explanation/threat-model"],
    "membership inference": ["explanation/privacy"],
    "what does a helper see": ["explanation/threat-model"],
    "who sees the features": ["explanation/threat-model"],
    "stop the servers": ["tutorial/quickstart"],
    "label dp": ["explanation/comparison"],
    "secret sharing": ["explanation/threat-model", "spec/sealing"],
    "attribution reporting api": ["explanation/comparison"],
    "auc is low": ["explanation/defaults"],
    "model does not learn": ["explanation/defaults"],
    "loss goes up": ["explanation/defaults"],
    "how many reports do i need": ["how-to/budget"],
    "learning rate": ["explanation/defaults"],
    "gpu": ["how-to/install"],
}
"""What someone types who has a goal or an option, and pages: one is among the first four found."""
OF_OPTIONS = ("tutorial/measurement", "how-to/operations", "reference/cli-adserver/job")
PICTURE = (ROOT / "docs" / "img" / "system.svg").read_text()


class Elements(HTMLParser):
    """Collects the names of a page's elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.add(tag)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    (out / "0.9.0").mkdir()
    (out / "0.9.0" / "index.html").write_text("an older version")
    build(out, "https://docs.example/lark")
    return out


@pytest.fixture(scope="module")
def origin(folder: Path) -> Iterator[str]:
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module", params=WIDTHS)
def page(origin: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    with chromium() as browser:
        opened = browser.new_page(viewport={"width": request.param, "height": 900})
        opened.goto(f"{origin}/")
        opened.wait_for_url("**/1.0.0/index.html")
        yield opened


@pytest.mark.page
@pytest.mark.slow
def test_the_first_page_fits_shows_a_picture_before_claims_and_fetches_nothing_from_elsewhere(
    page: Page,
) -> None:
    assert page.title() == "Masked LARk"
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0
    picture = page.locator("article img[src$='system.svg']")
    picture.scroll_into_view_if_needed()
    assert picture.evaluate("one => one.naturalWidth") > 0
    box = picture.bounding_box()
    assert box is not None
    assert box["width"] <= page.viewport_size["width"]  # type: ignore[index]  # it was set
    elsewhere = page.evaluate("performance.getEntriesByType('resource').map(one => new URL(one.name).host)")
    assert set(elsewhere) == {page.url.split("/")[2]}


@pytest.mark.page
@pytest.mark.slow
def test_search_finds_versions_are_listed_and_the_dark_can_be_chosen(page: Page) -> None:
    page.goto(page.url.split("#")[0])
    page.locator("select, .md-version__link").first.wait_for(state="attached")
    assert {one.strip() for one in page.locator(".md-version__link").all_text_contents()} == {
        "1.0.0",
        "0.9.0",
    }
    before = page.locator("body").get_attribute("data-md-color-scheme")
    page.locator("form[data-md-component=palette] label:not([hidden])").click()
    assert page.locator("body").get_attribute("data-md-color-scheme") != before
    page.keyboard.press("/")
    ready = page.locator(".md-search-result__meta").filter(has_text="Type to start")
    ready.wait_for(state="attached")  # the index is loaded
    typed = page.locator("input.md-search__input")
    first = page.locator(".md-search-result__item").first
    for words, found in FIRST_FOUND.items():
        typed.fill("")
        typed.press_sequentially(words)
        first.filter(has_text=found).wait_for()


@pytest.mark.page
@pytest.mark.slow
def test_a_goal_or_an_option_finds_its_page_among_the_first_four(page: Page) -> None:
    page.goto(page.url.split("/1.0.0/")[0] + "/1.0.0/index.html")
    page.keyboard.press("/")
    ready = page.locator(".md-search-result__meta").filter(has_text="Type to start")
    typed = page.locator("input.md-search__input")
    first_four = page.locator(".md-search-result__item:nth-child(-n + 4)")
    for words, pages in FOUND_EARLY.items():
        for text, awaited in (("", ready), (words, first_four.first)):
            typed.fill(text)
            typed.press("End")  # Material searches when a key is let go
            awaited.wait_for(state="attached")
        links = ", ".join(f"a.md-search-result__link[href*='{one}.html']" for one in pages)
        first_four.locator(links).first.wait_for(state="attached")
    typed.fill("revenue by campaigns zebra")  # "by" is not searched for, and "campaign" is found
    typed.press("End")
    missing = first_four.first.locator(".md-search-result__terms").first
    missing.filter(has_text=re.compile(r"^Missing: zebra$")).wait_for()


@pytest.mark.page
@pytest.mark.slow
def test_an_option_stands_on_one_line_and_nothing_is_wider_than_the_page(page: Page) -> None:
    site = page.url.split("/1.0.0/")[0] + "/1.0.0"
    for name in OF_OPTIONS:
        page.goto(f"{site}/{name}.html")
        lines = page.locator("article code .option").evaluate_all(
            "all => all.map(one => one.getClientRects().length)"
        )
        assert set(lines) == {1}
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.page
@pytest.mark.slow
def test_on_paper_no_table_is_cut_off_and_the_hidden_results_are_no_stop_of_the_tab_key(page: Page) -> None:
    page.emulate_media(media="print")
    page.goto(page.url.split("/1.0.0/")[0] + "/1.0.0/explanation/benchmarks.html")
    page.set_viewport_size({"width": A4_WIDTH, "height": 1_000})
    beyond = page.locator("article td").evaluate_all(
        "(all, width) => all.filter(td => td.getBoundingClientRect().left + td.scrollWidth > width).length",
        A4_WIDTH,
    )
    assert beyond == 0
    assert page.locator(".md-search__scrollwrap[tabindex]").count() == 0


@pytest.mark.page
@pytest.mark.slow
def test_no_link_of_the_built_site_is_broken_and_cards_have_a_picture(folder: Path) -> None:
    site = folder / "1.0.0"
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    ids = {path: set(re.findall(r'\b(?:id|name)="?([^"\s>]+)', text)) for path, text in pages.items()}
    broken = []
    for path, text in pages.items():
        for link in re.findall(r'\b(?:href|src)="([^"]+)"', text):
            if re.match(r"[a-z]+:|//", link) or path.name == "404.html":
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (anchor and target in ids and anchor not in ids[target]):
                broken.append((path.name, link))
    assert not broken
    card = re.search(
        r'og:image" content="https://docs.example/lark/1.0.0/([^"]+)"', pages[site / "index.html"]
    )
    assert card is not None
    assert (site / card[1]).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    listed = json.loads((folder / "versions.json").read_text())
    assert [one["version"] for one in listed] == ["1.0.0", "0.9.0"]


@pytest.mark.parametrize("text", [README, INDEX], ids=["readme", "index"])
def test_first_comes_how_to_install_then_lines_what_they_print_and_a_picture_and_then_claims(
    text: str,
) -> None:
    order = ["## Install", "make setup", "## See it work", "client.train(", "roc_auc", "system.svg"]
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    assert "epsilon 2.9" not in text[: places[-1]]  # no figure before
    [lines] = [block for kind, block in BLOCK.findall(text) if kind == "python"]
    assert len(lines.splitlines()) <= 12


def test_the_first_page_has_the_blocks_of_the_readme_which_a_test_runs() -> None:
    lines = [line for _, block in BLOCK.findall(INDEX) for line in block.splitlines()]
    assert max(map(len, lines)) <= WIDEST
    assert BLOCK.findall(INDEX) == BLOCK.findall(README[: README.index("## How it works")])


def test_the_first_page_has_the_claims_of_the_readme() -> None:
    claims, of_index = (re.search(r"^## Claims\n.*?(?=^## )", one, re.M | re.S) for one in (README, INDEX))
    assert claims is not None
    assert of_index is not None
    assert of_index[0] == claims[0].replace("](docs/", "](")


def test_the_first_page_leads_to_every_tutorial_and_guide() -> None:
    docs = ROOT / "docs"
    pages = [
        path.relative_to(docs).as_posix()
        for kind in ("tutorial", "how-to")
        for path in (docs / kind).glob("*.md")
    ]
    assert not [page for page in pages if f"({page})" not in INDEX]


def test_the_picture_has_each_of_its_colours_in_a_light_and_a_dark_form() -> None:
    light, dark = PICTURE.split("@media (prefers-color-scheme: dark)")
    drawn = dark[dark.index("</style>") :]
    forms = [set(re.findall(r"\.([a-z-]+)(?=[,{ ])", part)) for part in (light, dark.split("</style>")[0])]
    assert set(re.findall(r'class="([a-z-]+)"', drawn)) == forms[0] == forms[1]
    assert not re.search(r'(fill|stroke)="#', drawn)


def test_a_links_text_is_words_and_no_name_of_a_page() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = [
        (page.name, link)
        for page in pages
        for link in re.findall(r"\[[^]]*\.md`?\]\(.*?\)", page.read_text())
    ]
    assert not named


def test_no_formula_of_a_page_is_read_as_an_element() -> None:
    [extensions] = re.findall(r"^markdown_extensions: \[(.*)\]$", (ROOT / "mkdocs.yml").read_text(), re.M)
    unknown = {
        (page.name, name)
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for name in Elements(html_of(page.read_text(), extensions=extensions.split(", "))).names - ELEMENTS
    }
    assert not unknown


def test_navigation_begins_with_tutorials() -> None:
    assert re.search(r"^nav:\n  - index.md\n  - Tutorials:", (ROOT / "mkdocs.yml").read_text(), re.M)


@pytest.mark.parametrize("home", [None, "https://forge.example/lark/blob/v1.0.0"])
def test_the_readme_renders_on_an_index_with_absolute_links_and_pictures_or_none(
    monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    monkeypatch.chdir(ROOT)
    built = runpy.run_path(str(ROOT / "setup.py"))
    for_an_index, urls = built["for_an_index"], built["urls"](home)
    assert all(
        (ROOT / url.removeprefix(f"{home}/")).exists() for name, url in urls.items() if name != "Source"
    )
    assert len(urls) == (4 if home else 0)
    shown = markdown.render(for_an_index(README, home))
    assert shown is not None
    links = re.findall(r'(?:href|src)="([^"]+)"', shown)
    assert all(one.startswith(("https://", "#")) for one in links)
    assert ("https://forge.example/lark/raw/v1.0.0/docs/img/system.svg" in links) is (home is not None)
    assert "<table>" in shown
    assert "&lt;" not in shown.split("<pre")[0]


def test_extras_that_pages_name_exist() -> None:
    text = "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    phrases = re.findall(r"\bextras? ((?:`[a-z0-9]+`(?:,| and)? ?)+)", text)
    lists = re.findall(r"masked-lark\[([a-z0-9,]+)\]", text)
    named = {one for phrase in phrases for one in re.findall(r"[a-z0-9]+", phrase.replace(" and", ""))}
    named |= {one for those in lists for one in those.split(",")}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"torch"} < named <= set(declared)
