"""The usage examples at the head of modules are run."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("maskedlark", "helper", "adserver", "browser_sim")


def modules_with_examples() -> list[str]:
    """Only modules that hold an example are imported: the others would take their time."""
    found = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in found
        if "\n>>> " in path.read_text("utf-8") or "\n    >>> " in path.read_text("utf-8")
    ]


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_give_what_they_say(name: str) -> None:
    outcome = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_the_modules_that_people_call_begin_with_an_example() -> None:
    called = {
        "maskedlark.canonical",
        "maskedlark.numbers.field",
        "maskedlark.numbers.fixed_point",
        "maskedlark.privacy.accounting",
        "maskedlark.privacy.noise",
        "maskedlark.randomness",
        "maskedlark.reports.sealing",
        "maskedlark.runtime.durable_file",
        "maskedlark.runtime.periodic",
        "maskedlark.terminal.pictures",
        "adserver.measuring.domains",
        "adserver.records.dataset_state",
        "adserver.records.job_state",
        "adserver.records.report_state",
        "adserver.records.training_plan",
        "helper.ledger.round_state",
        "helper.releases.answering",
        "helper.releases.release_grid",
    }
    assert called <= set(modules_with_examples())
