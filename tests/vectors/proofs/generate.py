"""Writes vectors.json: proofs under fixed randomness, for an implementation in another language. `python -m
tests.vectors.proofs.generate`.

Field elements are decimal strings, because JavaScript's numbers hold 53 bits; byte strings are hex. A good
case holds all that a browser draws, in the order in which it draws it, and all that it makes of it; then what
both helpers compute. A bad case holds two plaintexts that no honest browser sends: a helper drops its own
(`reads` false), or the two tags differ.

The file was made by this product at the commit that brought it, and is checked against
`tests/reference_proof.py`, which shares no code with the product.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from maskedlark.randomness import derive_key, seeded
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.proofs.check import residues
from maskedlark.reports.proofs.proving import Binding, challenge
from maskedlark.reports.proofs.shape import ProofShape, proof_shape
from maskedlark.reports.share_seed import expand_share
from tests.maskedlark.reports.malicious import TASK_ID, Part, Sent, evidence, malformed, one_hot
from tests.maskedlark.reports.shapes import MEASURED, SEVERAL, TEN, TWO
from tests.one_proof import challenge_points, prove, secret_elements

FILE = Path(__file__).with_name("vectors.json")
PAIR_SECRET = b"p" * 32
PAIR = PairKey(secret=PAIR_SECRET, role=0)

GOOD: dict[str, tuple[ProofShape, list[list[int]], list[int]]] = {
    "two candidates, the first": (TWO, [[1, 0]], []),
    "two candidates, a fake report": (TWO, [[0, 0]], []),
    "ten candidates, the last": (TEN, [one_hot(10, 9)], []),
    "values and histograms": (MEASURED, [[0, 1, 0], [0, 1, 0], [0, 1]], [4, 1, 6]),
    "values at their lower ends": (MEASURED, [[1, 0, 0], [1, 0, 0], [1, 0]], [-3, 0, 0]),
    "values in a fake report": (MEASURED, [[0, 0, 0], [0, 0, 0], [0, 0]], []),
    "two polynomials": (SEVERAL, [[0, 1]], [2**31 - 1, -(2**31) + 1, 12345]),
    "300 candidates": (proof_shape(300, None), [one_hot(300, 123)], []),
}


class Recorder:
    """Remembers what is drawn."""

    def __init__(self, seed: int) -> None:
        self._stream = seeded(seed, "proof vectors")
        self.drawn: list[bytes] = []

    def __call__(self, count: int) -> bytes:
        self.drawn.append(self._stream(count))
        return self.drawn[-1]


def good_case(name: str, number: int) -> dict[str, Any]:
    """An honest report, with all steps on the way."""
    shape, vectors, values = GOOD[name]
    randomness = Recorder(number)
    binding = Binding(task_id=TASK_ID, report_id=bytes([number]) * 16, view=b"\2" + bytes(range(70)))
    bits = shape.bits_of(values) if values else [0] * sum(shape.polynomials)
    elements = secret_elements(shape, vectors, bits, randomness)
    proof = prove(shape, binding, elements, randomness)
    drawn_challenge = challenge(*proof.commitments)
    plaintexts = [proof.encode(binding, role) for role in (0, 1)]
    told = sent_of(shape, binding.report_id, binding.view, plaintexts)
    covered = [evidence(shape, role, [told[role]], residues)[0][0].tobytes() for role in (0, 1)]
    assert covered[0] == covered[1]
    found = np.frombuffer(covered[0][32 + 8 * shape.num_openings :], "<u8")
    return {
        "name": name,
        "shape": shape_of(shape),
        "task_id": binding.task_id.hex(),
        "report_id": binding.report_id.hex(),
        "view": binding.view.hex(),
        "vectors": vectors,
        "values": values,
        "bits": bits,
        "drawn": [one.hex() for one in randomness.drawn],
        "elements": texts(elements),
        "share_0": texts(expand_share(proof.seed, TASK_ID, binding.report_id, 0, shape.num_elements)),
        "share_1": texts(np.frombuffer(proof.share_1, "<u8")),
        "commitments": [one.hex() for one in proof.commitments],
        "challenge": drawn_challenge.hex(),
        "points": [str(point) for point in challenge_points(drawn_challenge)],
        "openings": [str(one) for one in proof.openings.tolist()],
        "plaintexts": [one.hex() for one in plaintexts],
        "residues": texts(found),
        "view_key": derive_key(PAIR_SECRET, b"view").hex(),
        "tag": PAIR.view_key.tag(binding.report_id, binding.view + covered[0]).hex(),
    }


def bad_cases() -> list[dict[str, Any]]:
    """One report of each malformed kind."""
    cases = []
    for shape in (TWO, MEASURED):
        for name, sent in malformed(shape, seeded(7, "bad proof vectors")):
            told = [evidence(shape, role, [sent[role]], residues) for role in (0, 1)]
            tags = [
                PAIR.view_key.tag(part.report_id, part.view + rows[0].tobytes())
                for part, (rows, _) in zip(sent, told, strict=True)
            ]
            cases.append(
                {
                    "name": name,
                    "shape": shape_of(shape),
                    "task_id": TASK_ID.hex(),
                    "report_ids": [part.report_id.hex() for part in sent],
                    "views": [part.view.hex() for part in sent],
                    "plaintexts": [(part.view + part.tail()).hex() for part in sent],
                    "reads": [bool(is_canonical[0]) for _, is_canonical in told],
                    "tags": [tag.hex() for tag in tags],
                }
            )
    return cases


def sent_of(shape: ProofShape, report_id: bytes, view: bytes, plaintexts: list[bytes]) -> Sent:
    """What the helpers open of two plaintexts."""
    first, second = (read_part(shape, report_id, view, plaintext) for plaintext in plaintexts)
    return first, second


def read_part(shape: ProofShape, report_id: bytes, view: bytes, plaintext: bytes) -> Part:
    """One plaintext in its pieces."""
    tail, opened = plaintext[len(view) :], 8 * shape.num_openings
    return Part(
        report_id=report_id,
        view=view,
        openings=np.frombuffer(tail[:opened], "<u8").tolist(),
        other=tail[opened : opened + 32],
        blind=tail[opened + 32 : opened + 64],
        share=tail[opened + 64 :],
    )


def shape_of(shape: ProofShape) -> dict[str, Any]:
    """What an implementation must be told, and what it must find."""
    return {
        "vectors": shape.vectors,
        "lows": shape.lows,
        "weights": shape.weights,
        "polynomials": shape.polynomials,
        "num_elements": shape.num_elements,
        "num_openings": shape.num_openings,
    }


def texts(elements: Any) -> list[str]:
    """Field elements as decimal strings."""
    return [str(element) for element in elements.tolist()]


def generate() -> dict[str, Any]:
    """The whole file."""
    return {"good": [good_case(name, number) for number, name in enumerate(GOOD)], "bad": bad_cases()}


if __name__ == "__main__":
    FILE.write_text(json.dumps(generate(), indent=1) + "\n", encoding="utf-8")
