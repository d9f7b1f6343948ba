"""The golden vectors: what the product makes is what the file holds, and what the reference makes of the same
draws."""

import hmac
import json
from typing import Any

import pytest

from maskedlark.numbers.field import MODULUS
from tests import reference, reference_proof
from tests.vectors.proofs.generate import FILE, generate

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))
GOOD = {case["name"]: case for case in VECTORS["good"]}
BAD = {f"{case['name']}, {len(case['shape']['vectors'])} vectors": case for case in VECTORS["bad"]}


def test_the_product_makes_the_golden_vectors() -> None:
    assert json.loads(json.dumps(generate())) == VECTORS


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD)
def test_the_reference_makes_the_golden_vectors_from_the_same_draws(case: dict[str, Any]) -> None:
    shape, view = case["shape"], bytes.fromhex(case["view"])
    task_id, report_id = bytes.fromhex(case["task_id"]), bytes.fromhex(case["report_id"])
    drawn = [bytes.fromhex(one) for one in case["drawn"]]
    vectors, bits, at = case["vectors"], [], 0
    for m in shape["polynomials"]:
        bits.append(case["bits"][at : at + m])
        at += m
    rho = [three(drawn[0][24 * index :]) for index in range(len(vectors))]
    phi = [three(drawn[1 + index]) for index in range(len(bits))]
    seed, *blinds = drawn[1 + len(bits) :]
    secret = reference_proof.prepare(vectors, bits, rho, phi)
    key = reference.hkdf_expand(seed, b"share", task_id + report_id + b"\0")
    share_0 = reference.field_elements(key, shape["num_elements"])
    shares = share_0, [(a - b) % MODULUS for a, b in zip(secret.flat(), share_0, strict=True)]
    commitments = [
        reference_proof.commitment(
            task_id, report_id, role=role, blind=blinds[role], view=view, share=shares[role]
        )
        for role in (0, 1)
    ]
    challenge, points = reference_proof.points_of(commitments)
    opened = reference_proof.openings(secret, points)
    tails = [seed, reference_proof.words(shares[1])]
    plaintexts = [
        view + reference_proof.words(opened) + commitments[1 - role] + blinds[role] + tails[role]
        for role in (0, 1)
    ]
    assert [plaintext.hex() for plaintext in plaintexts] == case["plaintexts"]
    assert [str(one) for one in points] == case["points"]
    for role in (0, 1):
        found = reference_proof.residues(role, reference_proof.like(secret, shares[role]), opened, points)
        assert [str(one) for one in found] == case["residues"]
    covered = report_id + view + challenge + reference_proof.words(opened) + reference_proof.words(found)
    assert hmac.digest(bytes.fromhex(case["view_key"]), covered, "sha256")[:16].hex() == case["tag"]


def three(drawn: bytes) -> list[int]:
    """Three drawn elements; none of the file's words is at or above the modulus."""
    words = [int.from_bytes(drawn[at : at + 8], "little") for at in (0, 8, 16)]
    assert max(words) < MODULUS
    return words


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_every_bad_vector_is_dropped(case: dict[str, Any]) -> None:
    assert case["reads"] != [True, True] or case["tags"][0] != case["tags"][1]


def test_the_vectors_hold_good_and_bad_reports_of_many_kinds() -> None:
    assert len(GOOD) >= 8
    assert len({case["name"] for case in VECTORS["bad"]}) >= 40
