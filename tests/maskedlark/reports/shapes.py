"""Shapes of proofs that tests share: few and many candidates, values of all sorts, histograms, several
polynomials."""

from maskedlark.reports.measurement import Measurement, Value
from maskedlark.reports.proofs.shape import ProofShape, proof_shape

VALUES = Measurement(
    min_cell_count=1,
    values=(
        Value(name="signed", low=-3, high=9, bucket_starts=(-3, 0, 5)),
        Value(name="bit", low=0, high=1),
        Value(name="odd", low=0, high=6, bucket_starts=(0, 3)),
    ),
)
WIDE = Measurement(
    min_cell_count=1,
    values=tuple(Value(name=f"wide_{index}", low=-(2**31) + 1, high=2**31 - 1) for index in range(3)),
)

TWO = proof_shape(2, None)
TEN = proof_shape(10, None)
MEASURED = proof_shape(3, VALUES)
SEVERAL = proof_shape(2, WIDE)
ALL: dict[str, ProofShape] = {
    "C = 2": TWO,
    "C = 10": TEN,
    "C = 3, values": MEASURED,
    "C = 2, wide values": SEVERAL,
}
