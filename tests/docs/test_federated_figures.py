"""What `make federated` says is what the pages say, as far as it takes no training."""

from pathlib import Path

import numpy as np
import pytest

from tests.bench import federated
from tests.bench.word_model import WordModel

SCALE = federated.Scale(is_quick=True, is_all=False)
PAGES = Path(__file__).parents[2] / "docs/explanation"


def test_the_papers_tables_come_out_and_the_page_shows_what_is_charged() -> None:
    figures = federated.accountants(SCALE)
    page = (PAGES / "federated-dp-fedavg.md").read_text()
    assert (figures["table1_cells_equal"], figures["table2_cells_equal"]) == (42, 6)
    for charged in figures["table2_charged"]:
        assert f"| {f'{charged:.3f}'.removeprefix('0')} |" in page


def test_the_analytic_sigmas_are_the_published_ones() -> None:
    assert federated.line_noise(SCALE)["line_sigma_worst_error"] <= 1e-5


def test_the_papers_network_has_its_parameters_in_eleven_vectors() -> None:
    sizes = WordModel(words=10_000, embedding=96, hidden=256).layer_sizes
    assert (sum(sizes), len(sizes)) == (1_346_144, 11)


def test_the_known_weights_have_a_feature_each_in_the_unit_interval() -> None:
    features = federated._crossed(np.random.default_rng(1), 500)
    assert features.shape == (500, len(federated.KNOWN_WEIGHTS)) == (500, 33)
    assert features.min() == 0
    assert features.max() == 1
    assert np.linalg.matrix_rank(features) == 33


def test_the_ordering_is_that_of_the_papers_figures() -> None:
    good = {
        "constant": 0.10,
        "none": 0.20,
        "clip 2.6": 0.195,
        "clip 1": 0.18,
        "clip 0.3": 0.05,
        "noise 0.003": 0.2,
    }
    good |= {"noise 0.01": 0.19, "noise 0.03": 0.17}
    assert federated.is_ordered(good)
    for name, bad in (("noise 0.03", 0.21), ("clip 0.3", 0.15), ("noise 0.01", 0.15), ("clip 2.6", 0.05)):
        assert not federated.is_ordered(good | {name: bad})
    quick = {"constant": 0.10, "clip 2.6": 0.18, "clip 0.3": 0.02, "noise 0.1": 0.12}
    assert federated.is_ordered(quick)
    assert not federated.is_ordered(quick | {"noise 0.1": 0.19})


@pytest.mark.parametrize("part", list(federated.PARTS))
def test_every_part_says_what_it_measures(part: str) -> None:
    assert (federated.PARTS[part].__doc__ or "").strip()
