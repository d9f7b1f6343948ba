"""Made tables: labels follow their odds, and a seed gives the same rows."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tests.bench.made_tables import TABLES, encoded


@pytest.mark.parametrize(("name", "rate"), [("clicks", 0.12), ("purchases", 0.2), ("offers", 0.2)])
def test_labels_are_drawn_at_the_base_rate_and_follow_the_odds(name: str, rate: float) -> None:
    made = TABLES[name](4_000, 1)
    assert made.table.labels.mean() == pytest.approx(rate, abs=0.02)
    assert roc_auc_score(made.table.labels, made.logits) > 0.7
    again = TABLES[name](4_000, 1)
    assert again.table.cells == made.table.cells
    np.testing.assert_array_equal(again.table.labels, made.table.labels)


def test_the_encoder_is_fitted_to_the_first_rows_and_reads_dates_as_their_parts() -> None:
    made = TABLES["clicks"](300, 1)
    encoder, seen = encoded(made, 200)
    names = [column.name for column in encoder.columns]
    assert {"seen@weekday", "seen@day", "seen@hour"} < set(names)
    assert "seen" not in names
    assert seen.features.shape == (300, len(names))
