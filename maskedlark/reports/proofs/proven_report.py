"""The plaintexts of a report with a proof: what the browser encodes, and what a helper reads.

    view | openings | the other helper's commitment | own blind | share

Openings are u64 each, commitment and blind have 32 bytes. Role 0's share is a seed of 32 bytes, role 1's its
elements, u64 each. Integers are little-endian. Openings, commitment, blind and the proof's elements are
dropped once the helper has computed its tag: a dataset holds mask shares and value shares, as without proofs.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maskedlark.numbers.field import (
    ELEMENT_BYTES,
    MODULUS,
    FieldVector,
    add,
    from_signed,
    multiply,
    total,
)
from maskedlark.randomness import Randomness
from maskedlark.reports.measurement import Measurement
from maskedlark.reports.proofs.check import ProofTable
from maskedlark.reports.proofs.proving import Binding, prove, secret_elements
from maskedlark.reports.proofs.shape import BLIND_BYTES, COMMITMENT_BYTES, ProofShape
from maskedlark.reports.share_seed import SEED_BYTES, expand_shares


def proven_plaintexts(
    shape: ProofShape,
    bindings: Sequence[Binding],
    *,
    masks: Sequence[Sequence[int]],
    columns: Sequence[Sequence[int]],
    measurement: Measurement | None,
    sources: Sequence[Randomness],
) -> list[tuple[bytes, bytes]]:
    """Build both roles' plaintexts of n reports of one task, at least one. Called by the browser.

    Args:
        shape: Of the task.
        bindings: The reports, with their views, which the plaintexts begin with.
        masks: A 1 at the real candidate of each.
        columns: What a report shares of its measurement: see `Measurement.columns`; empty without
            measurement.
        measurement: The task's.
        sources: Each report's: draws the proof's blinds, the seed of share 0, the commitments' blinds, in
            this order.
    """
    vectors, bits = [], []
    for mask, shared in zip(masks, columns, strict=True):
        histograms, values = _split_columns(measurement, shared)
        vectors.append([*mask, *histograms])
        # A fake report counts 0, so that zero bits spell the value 0 and not the least one.
        bits.append(shape.bits_of(values) if sum(mask) else [0] * sum(shape.polynomials))
    elements = secret_elements(shape, np.array(vectors, np.uint64), np.array(bits, np.uint64), sources)
    return [
        (proof.encode(binding, 0), proof.encode(binding, 1))
        for binding, proof in zip(bindings, prove(shape, bindings, elements, sources), strict=True)
    ]


def _split_columns(
    measurement: Measurement | None, columns: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Split a report's columns into its histograms, concatenated, and its values."""
    histograms, values = list[int](), list[int]()
    at = 1
    for value in measurement.values if measurement else ():
        buckets = len(value.bucket_starts)
        values.append(columns[at])
        histograms += columns[at + 1 : at + 1 + buckets]
        at += 1 + buckets
    return histograms, values


def read_proofs(
    shape: ProofShape, task_id: bytes, report_ids: Sequence[bytes], role: int, parts: NDArray[np.uint8]
) -> tuple[ProofTable, NDArray[np.bool_]]:
    """Read the proofs behind the views of n plaintexts. Called by a helper.

    Args:
        shape: Of the task.
        task_id: The task.
        report_ids: Of the n reports.
        role: The helper's.
        parts: u8 (n, proof_length): the plaintexts behind their views.

    Returns:
        The table, and for each row whether all its elements are below the modulus. A row of which that is not
        true must be dropped before anything of it is hashed.
    """
    opened = ELEMENT_BYTES * shape.num_openings
    others, blinds = opened + COMMITMENT_BYTES, opened + COMMITMENT_BYTES + BLIND_BYTES
    openings, share = _words(parts[:, :opened]), parts[:, blinds:]
    if role == 0:
        told = share.tobytes()
        seeds = [told[start : start + SEED_BYTES] for start in range(0, len(told), SEED_BYTES)]
        elements = expand_shares(seeds, task_id, report_ids, role, shape.num_elements)
    else:
        elements = _words(share)
    is_canonical = ~(_over(openings) | _over(elements))
    table = ProofTable(
        openings=openings, others=parts[:, opened:others], blinds=parts[:, others:blinds], elements=elements
    )
    return table, is_canonical


def value_shares(shape: ProofShape, measurement: Measurement, elements: FieldVector) -> FieldVector:
    """Return what sums use of a measurement, uint64 (n, W), see `Measurement.columns`."""
    places = shape.places
    count = total(elements[:, places.vectors[0]], axis=1)
    # A value is n low + the sum of w b, and linear: each helper finds its share of it alone.
    columns = [count[:, None]]
    bit, histogram = places.bits.start, 1
    for low, weights, value in zip(shape.lows, shape.weights, measurement.values, strict=True):
        weighed = multiply(elements[:, bit : bit + len(weights)], np.array(weights, np.uint64)[None, :])
        least = multiply(count, np.broadcast_to(from_signed(np.array([low], np.int64)), count.shape))
        columns.append(add(total(weighed, axis=1), least)[:, None])
        bit += len(weights)
        if value.bucket_starts:
            columns.append(elements[:, places.vectors[histogram]])
            histogram += 1
    return np.concatenate(columns, axis=1)


def _words(encoded: NDArray[np.uint8]) -> FieldVector:
    return np.ascontiguousarray(encoded).view("<u8").astype(np.uint64)


def _over(elements: FieldVector) -> NDArray[np.bool_]:
    """Return which rows have an element at or above the modulus."""
    return np.asarray((elements >= np.uint64(MODULUS)).any(axis=1), np.bool_)
