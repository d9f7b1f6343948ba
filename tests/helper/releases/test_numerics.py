import pytest

from helper.gradient.engine import GradientEngine
from helper.gradient.general import processor
from helper.releases import numerics
from helper.releases.numerics import numerics_digest, software_digest
from maskedlark.privacy.clip import Clip, Norm
from tests.helper.parties import FakeEngine


class Engine(FakeEngine):
    """An engine of either path."""

    def __init__(self, path: str) -> None:
        super().__init__(1, Clip(norm=Norm.L2, bound=1.0, frac_bits=16))
        self.path = path


EXACT, GENERAL = Engine(path="exact"), Engine(path="general")


def digests(*engines: GradientEngine) -> list[bytes]:
    return [numerics_digest(engine) for engine in engines]


def test_the_two_paths_have_their_own_digests() -> None:
    exact, general = digests(EXACT, GENERAL)
    assert len({exact, general, software_digest()}) == 3
    assert len(exact) == len(general) == 32
    assert numerics_digest(FakeEngine(1, Clip(norm=Norm.L2, bound=1.0, frac_bits=16))) == exact


def test_another_torch_changes_the_general_path_only(monkeypatch: pytest.MonkeyPatch) -> None:
    before, status = digests(EXACT, GENERAL), software_digest()
    monkeypatch.setattr(numerics, "version", lambda name: "0.0")
    after = digests(EXACT, GENERAL)
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert software_digest() != status


def test_another_processor_changes_the_general_path_only(monkeypatch: pytest.MonkeyPatch) -> None:
    before, status = digests(EXACT, GENERAL), software_digest()
    monkeypatch.setattr(processor, "golden_digest", lambda: bytes(32))
    after = digests(EXACT, GENERAL)
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert software_digest() == status  # which needs no torch


def test_another_revision_of_the_exact_path_changes_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digests(EXACT, GENERAL)
    monkeypatch.setattr(numerics, "NUMERICS_DIGEST", bytes(32))
    after = digests(EXACT, GENERAL)
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_a_helper_without_torch_still_has_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "_DECIDE_GENERAL_BITS", ("no-such-package",))
    assert len(software_digest()) == 32
