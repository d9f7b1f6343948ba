"""How long a helper takes for the statements about many queries, the first time and again.

python -m tests.bench.statements 300 1200
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from helper.ledger.records import StoredQuery
from maskedlark.privacy.clip import Norm
from maskedlark.privacy.mechanism import Mechanism
from tests.helper.parties import ASKED
from tests.helper.releases.test_queries import Shop, noise

_SETTINGS = 5


def measure(queries: int, folder: Path) -> tuple[float, float]:
    """Return the seconds of two calls, after so many queries at five settings of noise."""
    shop = Shop(
        folder, mechanism=Mechanism.GAUSSIAN, norm=Norm.L2, epsilon=50.0, collusion_epsilon=90.0, delta=1e-5
    )
    core, asked = shop.cores[0], shop.query()
    for number in range(queries):
        spec = noise(asked, 30.0 * (1 + number % _SETTINGS))
        spec = replace(spec, query_id=number.to_bytes(16, "big"))
        core.ledger.add_query(StoredQuery(spec=spec, answer=bytes(64)), lambda _: None)
    taken = []
    for _ in range(2):
        begun = perf_counter()
        found = sum(1 for _ in core.statements.of_task(shop.task_id, ASKED))
        taken.append(perf_counter() - begun)
        assert found == queries
    return taken[0], taken[1]


def main() -> None:
    """Print a line for each number of queries."""
    for queries in map(int, sys.argv[1:] or ("300", "1200")):
        with tempfile.TemporaryDirectory() as folder:
            first, again = measure(queries, Path(folder))
        print(f"{queries:6} queries: {first:6.2f} s, again {again:.3f} s")


if __name__ == "__main__":
    main()
