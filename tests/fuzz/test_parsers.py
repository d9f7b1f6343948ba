"""Every parser of bytes from outside, fuzzed: what comes out is a value or a typed error, never anything else, and never without end."""

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adserver.eval_set import read_eval_set
from adserver.plan import TrainingPlan
from maskedlark import canonical
from maskedlark.dataset import ShareForHelper
from maskedlark.errors import MaskedLarkError
from maskedlark.job import JobSpec
from maskedlark.model import weights
from maskedlark.model.graph import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import seeded
from maskedlark.report import decode_shares, split
from maskedlark.round import AggregateShare
from maskedlark.rpc import wire
from maskedlark.sealing import SignedKeyList
from maskedlark.task import Task, TaskBundle
from maskedlark.upload import SealedShare, check_report
from tests.builders import examples, reports, shares_for, world
from tests.fuzz.mutations import almost
from tests.helper.parties import MODEL, NUM_VALUES, WEIGHTS

WORLD = world()
REPORT = reports(WORLD, examples(WORLD.task, 1))[0]
PLAINTEXT = split(WORLD.task, examples(WORLD.task, 1)[0], seeded(1, "fuzz"))[0]
PARSED = parse(MODEL, num_features=WORLD.task.num_features)
JOB = JobSpec(
    job_id=b"j" * 16, task_id=WORLD.task.task_id, dataset_id=bytes(32), model_digest=PARSED.digest,
    loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, rounds=3, sampling_numerator=1 << 31, noise_multiplier=1.0,
)  # fmt: skip


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """One function that takes bytes from outside, and bytes that it accepts."""

    parse: Callable[[bytes], object]
    valid: bytes


def open_one(ciphertext: bytes) -> object:
    """A share as a helper opens it: whatever is wrong is a counted drop."""
    [share] = shares_for([REPORT], 0)
    changed = ShareForHelper(
        report_id=share.report_id, time_bucket=share.time_bucket, share=SealedShare(key_id=share.share.key_id, ciphertext=ciphertext)
    )
    opened = WORLD.opener(0).open([changed]).admitted
    assert opened.is_admitted.sum() + opened.dropped.total() == 1
    return opened


def shares_of(plaintext: bytes) -> object:
    """Plaintexts of the right length: others never get this far."""
    row = np.frombuffer(plaintext.ljust(len(PLAINTEXT), b"\0")[: len(PLAINTEXT)], np.uint8)
    return decode_shares(WORLD.task, row.reshape(1, -1).copy())


PARSERS = {
    "report": Parser(parse=lambda encoded: check_report(WORLD.task, wire.decode_report(encoded)), valid=wire.encode_report(REPORT)),
    "sealed share": Parser(parse=open_one, valid=REPORT.shares[0].ciphertext),
    "input share": Parser(parse=shares_of, valid=PLAINTEXT),
    "task": Parser(parse=lambda encoded: canonical.decode(Task, encoded), valid=canonical.encode(WORLD.task)),
    "task bundle": Parser(parse=lambda encoded: canonical.decode(TaskBundle, encoded).verify(), valid=canonical.encode(WORLD.bundle)),
    "key list": Parser(
        parse=lambda encoded: canonical.decode(SignedKeyList, encoded).verified_key(WORLD.task.helpers[0].verify_key),
        valid=canonical.encode(WORLD.bundle.key_lists[0]),
    ),
    "job": Parser(parse=lambda encoded: canonical.decode(JobSpec, encoded), valid=canonical.encode(JOB)),
    "training plan": Parser(parse=lambda encoded: canonical.decode(TrainingPlan, encoded), valid=canonical.encode(JOB)),
    "weights": Parser(parse=lambda encoded: weights.decode(encoded, PARSED.parameters), valid=WEIGHTS),
    "aggregate share": Parser(
        parse=lambda encoded: AggregateShare.decode(encoded, NUM_VALUES),
        valid=AggregateShare(vector=np.arange(NUM_VALUES, dtype=np.uint64), agreement_tag=bytes(32)).encode(),
    ),
    "evaluation set": Parser(parse=read_eval_set, valid=npz(features=np.zeros((3, 4), np.uint8), labels=np.array([0, 1, 1]))),
    "model": Parser(parse=lambda encoded: parse(encoded, num_features=4), valid=MODEL),
}


@pytest.mark.parametrize("name", PARSERS)
def test_what_each_parser_is_fuzzed_from_is_right(name: str) -> None:
    if name != "training plan":
        PARSERS[name].parse(PARSERS[name].valid)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=150, deadline=2_000, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_hostile_bytes_give_a_typed_error_and_nothing_else(name: str, data: st.DataObject) -> None:
    encoded = data.draw(almost(PARSERS[name].valid))
    try:
        PARSERS[name].parse(encoded)
    except MaskedLarkError as error:
        refused = str(error)
    else:
        refused = ""
    assert len(refused) < 2_000


def hostile_npz(shape: str, body: bytes) -> bytes:
    """An .npz whose array says that it has another shape than it has."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    padded = header.ljust(118 - 1) + "\n"
    array = b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode() + body
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("features.npy", "labels.npy"):
            archive.writestr(name, array)
    return stream.getvalue()


@pytest.mark.parametrize(
    "encoded",
    [hostile_npz("(1099511627776, 4)", b""), hostile_npz("(-1, 4)", b""), hostile_npz("(4,4", b""), hostile_npz("(1,1)", bytes(1 << 29))],
    ids=["more than there is", "negative", "cut off", "a bomb"],
)
def test_an_evaluation_set_that_says_it_is_huge_is_refused_without_the_memory(encoded: bytes) -> None:
    with pytest.raises(MaskedLarkError):
        read_eval_set(encoded)
