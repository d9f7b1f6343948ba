"""What proofs of form cost and what they let through: browsers' and helpers' time, bytes, honest and
malformed reports.

    make bench-proofs              a table
    make bench-proofs ARGS=--json
    make bench-proofs ARGS="--quick --json"    a hundredth of the reports

Reports go through the plaintexts of both helpers, what each reads there, its compiled residues and what its
tag covers; HPKE is left out but where opening is measured. Times are of the process, the best of several
turns, and what is compared is measured in turns.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helper.datasets.proofs import fast_residues
from maskedlark.numbers.field import random_vector
from maskedlark.randomness import seeded
from maskedlark.reports.dataset import ShareOpener
from maskedlark.reports.measurement import Measurement, Value
from maskedlark.reports.proofs.check import ProofTable
from maskedlark.reports.proofs.proving import Binding, prove, secret_elements
from maskedlark.reports.proofs.shape import POINTS, ProofShape, proof_shape
from maskedlark.rpc.wire import encode_report
from tests.bench.harness import bench_parser, best_of, fastest, show
from tests.builders import World, examples, reports, shares_for, world
from tests.maskedlark.reports.malicious import TASK_ID, honest, honest_parts, is_accepted, malformed
from tests.maskedlark.reports.proofs.test_proofs_in_small_fields import valid_masks_of_a_small_field
from tests.maskedlark.reports.shapes import MEASURED, TEN, TWO

HUNDRED = proof_shape(100, None)
SIXTEEN_BITS = Measurement(
    min_cell_count=1, values=tuple(Value(name=f"value_{index}", low=0, high=65_535) for index in range(3))
)
BITS_48 = proof_shape(2, SIXTEEN_BITS)
NUM_FEATURES = 30
CHUNK = 2_000
TURNS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the issue asks for.

    Attributes:
        honest_sent: Honest reports, by shape.
        honest_accepted: How many of them both helpers accepted.
        malformed_kinds: Kinds of malformed reports, over all shapes.
        malformed_sent: Malformed reports.
        malformed_accepted: How many of them were accepted.
        exhaustive_small_field: Whether, of all masks and all q in GF(13), just the valid ones hold at every
            point.
        opening_overhead: How much longer both helpers together open a report with its proof: .1 is a tenth.
        opening_overhead_by_role: The same at each; role 0 also expands its share from the seed.
        opening_us_without: What opening one share without a proof takes here, in microseconds.
        field_us_c2: A helper's field arithmetic of one report, in microseconds, at 2 candidates.
        field_us_c100: The same at 100.
        proof_ms: The browser's proof in milliseconds, the slowest of 2, 10 and 100 candidates.
        proof_ms_48_bits: The same with three values of 16 bits each.
        wbcd_report_bytes: A report of WBCD's task as it is uploaded.
        wbcd_report_bytes_without: The same in a task without proofs.
    """

    honest_sent: dict[str, int]
    honest_accepted: dict[str, int]
    malformed_kinds: int
    malformed_sent: int
    malformed_accepted: int
    exhaustive_small_field: bool
    opening_overhead: float
    opening_overhead_by_role: tuple[float, float]
    opening_us_without: float
    field_us_c2: float
    field_us_c100: float
    proof_ms: float
    proof_ms_48_bits: float
    wbcd_report_bytes: int
    wbcd_report_bytes_without: int


def measure(*, share: float) -> Result:
    """All figures; `share` of the full number of reports."""
    wanted = {
        "c2": (TWO, 100_000),
        "c10": (TEN, 100_000),
        "c100": (HUNDRED, 1_000),
        "values": (MEASURED, 1_000),
    }
    sent = {name: max(10, int(count * share)) for name, (_, count) in wanted.items()}
    accepted = {name: honest_accepted(shape, sent[name]) for name, (shape, _) in wanted.items()}
    opened = Opening.measure()
    kinds, malformed_sent, malformed_accepted = all_malformed(max(5, int(1_000 * share)))
    return Result(
        honest_sent=sent,
        honest_accepted=accepted,
        malformed_kinds=kinds,
        malformed_sent=malformed_sent,
        malformed_accepted=malformed_accepted,
        exhaustive_small_field=valid_masks_of_a_small_field() == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)],
        opening_overhead=sum(opened.with_proof) / sum(opened.without) - 1,
        opening_overhead_by_role=opened.overhead_by_role,
        opening_us_without=sum(opened.without) / 2,
        field_us_c2=field_us(TWO),
        field_us_c100=field_us(HUNDRED),
        proof_ms=max(proof_ms(shape) for shape in (TWO, TEN, HUNDRED)),
        proof_ms_48_bits=proof_ms(BITS_48),
        wbcd_report_bytes=report_bytes(proof=True),
        wbcd_report_bytes_without=report_bytes(proof=False),
    )


def honest_accepted(shape: ProofShape, count: int) -> int:
    """How many of so many honest reports are accepted."""
    randomness, accepted = seeded(count, "honest"), 0
    for start in range(0, count, CHUNK):
        sent = [honest(shape, randomness) for _ in range(min(CHUNK, count - start))]
        accepted += sum(is_accepted(shape, sent, fast_residues))
    return accepted


def all_malformed(each: int) -> tuple[int, int, int]:
    """Kinds, reports sent and reports accepted, over two shapes."""
    kinds, sent, accepted = 0, 0, 0
    for shape in (TWO, MEASURED):
        randomness = seeded(each, "malformed")
        names: set[str] = set()
        for _ in range(each):
            made = list(malformed(shape, randomness))
            names.update(name for name, _ in made)
            sent += len(made)
            accepted += sum(is_accepted(shape, [one for _, one in made], fast_residues))
        kinds += len(names)
    return kinds, sent, accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Microseconds of opening a share, by role."""

    with_proof: tuple[float, float]
    without: tuple[float, float]

    @property
    def overhead_by_role(self) -> tuple[float, float]:
        """How much longer each role opens with a proof."""
        return self.with_proof[0] / self.without[0] - 1, self.with_proof[1] / self.without[1] - 1

    @classmethod
    def measure(cls, count: int = 500) -> "Opening":
        """Both kinds of tasks and both roles in turns."""
        actions = [
            opening(world(num_features=NUM_FEATURES, proof=proof), role, count)
            for proof in (True, False)
            for role in (0, 1)
        ]
        best = fastest({str(index): action for index, action in enumerate(actions)}, 3 * TURNS)
        took = [one / count * 1e6 for one in best.values()]
        return cls(with_proof=(took[0], took[1]), without=(took[2], took[3]))


def opening(of: World, role: int, count: int) -> Callable[[], object]:
    """Opens so many shares as a helper does."""
    incoming = shares_for(reports(of, examples(of.task, count)), role)
    opener = ShareOpener(
        task=of.task,
        role=role,
        opening_keys=[of.keys[role].opening],
        view_key=of.pair(role).view_key,
        residues_of=fast_residues,
    )
    return lambda: opener.open(incoming)


def field_us(shape: ProofShape, count: int = 5_000) -> float:
    """Microseconds of a report's residues at one helper."""
    randomness = seeded(1, "field")
    digests = np.zeros((count, 32), np.uint8)
    table = ProofTable(
        openings=random_vector(count * shape.num_openings, randomness).reshape(count, -1),
        others=digests,
        blinds=digests,
        elements=random_vector(count * shape.num_elements, randomness).reshape(count, -1),
    )
    points = random_vector(count * POINTS, randomness).reshape(count, -1)
    return best_of(lambda: fast_residues(shape, 1, table, points), TURNS) / count * 1e6


def proof_ms(shape: ProofShape, count: int = 200) -> float:
    """Milliseconds of a browser's proof, sharing included."""
    randomness = seeded(2, "proofs")
    bindings = [Binding(task_id=TASK_ID, report_id=bytes(16), view=bytes(55))] * count
    given = [honest_parts(shape, randomness) for _ in range(count)]
    vectors = np.array([[one for vector in held for one in vector] for held, _ in given], np.uint64)
    bits = np.array([held for _, held in given], np.uint64)

    def make() -> None:
        sources = [randomness] * count
        prove(shape, bindings, secret_elements(shape, vectors, bits, sources), sources)

    return best_of(make, TURNS) / count * 1e3


def report_bytes(*, proof: bool) -> int:
    """A report of 30 features and two classes, as it is uploaded."""
    of = world(num_features=NUM_FEATURES, proof=proof)
    [report] = reports(of, examples(of.task, 1))
    return len(encode_report(report))


def main() -> None:
    """The command line."""
    parser = bench_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the reports")
    given = parser.parse_args()
    show(measure(share=0.01 if given.quick else 1.0), is_json=given.json)


if __name__ == "__main__":
    main()
