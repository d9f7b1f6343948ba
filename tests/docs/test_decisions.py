"""Decisions say whether they stand, and the index and the site list them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "adr"
DECISIONS = sorted(FOLDER.glob("[0-9]*.md"))
STATUS = re.compile(r"\*\*Status\.\*\* ((?:Accepted|Superseded by).*)\.\n")


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_a_status_that_the_index_repeats(page: Path) -> None:
    text = page.read_text()
    number, title = re.match(r"# (\d+)\. (.*)", text).groups()  # type: ignore[union-attr]  # fails if there is no title
    status = STATUS.search(text)
    assert status is not None, "add **Status.** Accepted. below the title"
    in_index = f"| [{number}]({page.name}) | {title} | {status[1][0].lower()}{status[1][1:]} |"
    assert in_index in (FOLDER / "index.md").read_text().splitlines()
    assert int(number) == int(page.name[:4])


def test_the_site_lists_every_decision() -> None:
    listed = re.findall(r"- adr/([0-9].*\.md)", (ROOT / "mkdocs.yml").read_text())
    assert listed == [page.name for page in DECISIONS]


def test_a_decision_that_is_changed_names_the_one_that_changes_it_and_the_other_way_round() -> None:
    amends = re.compile(r"amends (.*)")
    for page in DECISIONS:
        status = STATUS.search(page.read_text())
        assert status is not None
        for name in re.findall(r"\(([0-9].*?\.md)\)", "".join(amends.findall(status[1]))):
            assert page.name in (FOLDER / name).read_text().split("**Context.**")[0]
