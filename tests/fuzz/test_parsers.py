"""Every parser of bytes from outside, fuzzed.

What comes out is a value or a typed error, never anything else, and never without end.
"""

import gzip
import io
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adserver.measuring.domains import codes_by_key, load_domains
from adserver.records.optimizer_kinds import OptimizerKind
from adserver.records.training_plan import Optimizer, Schedule, TrainingPlan
from adserver.training import eval_set
from adserver.training.eval_set import read_eval_set
from browser_sim.sources.table import TableSettings, load_table
from maskedlark import canonical
from maskedlark.encoding.idx import parse_idx, unpack
from maskedlark.errors import JobReason, JobRefused, MaskedLarkError
from maskedlark.model import weights
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.randomness import seeded
from maskedlark.releases.counting import measurement_of
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.job import JobSpec
from maskedlark.releases.query import QuerySpec
from maskedlark.releases.release import AggregateShare
from maskedlark.reports.dataset import ShareForHelper
from maskedlark.reports.sealing import SignedKeyList
from maskedlark.reports.task import Task, TaskBundle
from maskedlark.reports.upload import SealedShare
from maskedlark.rpc import wire
from tests.builders import check_report, decode_shares, examples, reports, shares_for, split, world
from tests.fuzz.mutations import almost, almost_json
from tests.helper.parties import MODEL, NUM_VALUES, WEIGHTS
from tests.maskedlark.query_specs import discovery, query
from tests.measured import measuring_world

WORLD = world()
REPORT = reports(WORLD, examples(WORLD.task, 1))[0]
PLAINTEXT = split(WORLD.task, examples(WORLD.task, 1)[0], seeded(1, "fuzz"))[0]
PARSED = parse(MODEL, num_features=WORLD.task.num_features)
JOB = JobSpec(
    job_id=b"j" * 16, task_id=WORLD.task.task_id, dataset_id=bytes(32), model_digest=PARSED.digest,
    loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, rounds=3, sampling_numerator=1 << 31, noise_multiplier=1.0,
)  # fmt: skip


PLAN = TrainingPlan(
    task=WORLD.task, job=JOB, dataset_size=100,
    optimizer=Optimizer(kind=OptimizerKind.ADAM, learning_rate=0.1), schedule=Schedule(),
    eval_every=2,
)  # fmt: skip
MEASURING = measuring_world()
IDX = bytes((0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3)) + bytes(12)


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
        report_id=share.report_id,
        time_bucket=share.time_bucket,
        share=SealedShare(key_id=share.share.key_id, ciphertext=ciphertext),
    )
    opened = WORLD.opener(0).open([changed]).admitted
    assert opened.is_admitted.sum() + opened.dropped.total() == 1
    return opened


def shares_of(plaintext: bytes) -> object:
    """Plaintexts of the right length: others never get this far."""
    row = np.frombuffer(plaintext.ljust(len(PLAINTEXT), b"\0")[: len(PLAINTEXT)], np.uint8)
    return decode_shares(WORLD.task, row.reshape(1, -1).copy())


def loaded(load: Callable[[Path], object], encoded: bytes) -> object:
    """What a loader makes of a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "given"
        path.write_bytes(encoded)
        return load(path)


def table(encoded: bytes) -> object:
    return loaded(lambda path: load_table(TableSettings(path=path, label="label")), encoded)


def domains(encoded: bytes) -> object:
    measurement = measurement_of(MEASURING.task)
    return loaded(lambda path: codes_by_key(load_domains(path), measurement), encoded)


PARSERS = {
    "report": Parser(
        parse=lambda encoded: check_report(WORLD.task, wire.decode_report(encoded)),
        valid=wire.encode_report(REPORT),
    ),
    "sealed share": Parser(parse=open_one, valid=REPORT.shares[0].ciphertext),
    "input share": Parser(parse=shares_of, valid=PLAINTEXT),
    "task": Parser(parse=lambda encoded: canonical.decode(Task, encoded), valid=canonical.encode(WORLD.task)),
    "task bundle": Parser(
        parse=lambda encoded: canonical.decode(TaskBundle, encoded).verify(),
        valid=canonical.encode(WORLD.bundle),
    ),
    "key list": Parser(
        parse=lambda encoded: canonical.decode(SignedKeyList, encoded).verify(
            WORLD.task.helpers[0].verify_key
        ),
        valid=canonical.encode(WORLD.bundle.key_lists[0]),
    ),
    "job": Parser(parse=lambda encoded: canonical.decode(JobSpec, encoded), valid=canonical.encode(JOB)),
    "training plan": Parser(
        parse=lambda encoded: canonical.decode(TrainingPlan, encoded), valid=canonical.encode(PLAN)
    ),
    "query": Parser(
        parse=lambda encoded: canonical.decode(QuerySpec, encoded), valid=canonical.encode(query(MEASURING))
    ),
    "discovery": Parser(
        parse=lambda encoded: canonical.decode(DiscoverySpec, encoded),
        valid=canonical.encode(discovery(MEASURING)),
    ),
    "table": Parser(parse=table, valid=b"age,word,label\n1,a,0\n2.5,b,1\n1e308,,1\n-1e308,a,0\n"),
    "idx": Parser(parse=lambda encoded: parse_idx(encoded, 3, "images"), valid=IDX),
    "packed idx": Parser(
        parse=lambda encoded: parse_idx(unpack(encoded, "images"), 3, "images"),
        valid=gzip.compress(IDX, mtime=0),
    ),
    "domain file": Parser(
        parse=domains,
        valid=b'{"campaign":[1,"2",4294967295],"place":["oslo","lima"],"language":{"first":1,"last":3}}',
    ),
    "weights": Parser(parse=lambda encoded: weights.decode(encoded, PARSED.parameters), valid=WEIGHTS),
    "aggregate share": Parser(
        parse=lambda encoded: AggregateShare.decode(encoded, NUM_VALUES),
        valid=AggregateShare(vector=np.arange(NUM_VALUES, dtype=np.uint64), agreement_tag=bytes(32)).encode(),
    ),
    "evaluation set": Parser(
        parse=read_eval_set, valid=npz(features=np.zeros((3, 4), np.uint8), labels=np.array([0, 1, 1]))
    ),
    "model": Parser(parse=lambda encoded: parse(encoded, num_features=4), valid=MODEL),
}


def refusal(name: str, encoded: bytes) -> str:
    """What a parser says against some bytes, or nothing."""
    try:
        PARSERS[name].parse(encoded)
    except MaskedLarkError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", PARSERS)
def test_what_each_parser_is_fuzzed_from_is_right(name: str) -> None:
    """Some parsers check, and return nothing."""
    assert refusal(name, PARSERS[name].valid) == ""


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_hostile_bytes_give_a_typed_error_and_nothing_else(name: str, data: st.DataObject) -> None:
    assert len(refusal(name, data.draw(almost(PARSERS[name].valid)))) < 2_000


JSON_PARSERS = (
    "task",
    "task bundle",
    "key list",
    "job",
    "training plan",
    "query",
    "discovery",
    "domain file",
)


@pytest.mark.parametrize("name", JSON_PARSERS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_hostile_values_in_the_right_form_give_a_typed_error_and_nothing_else(
    name: str, data: st.DataObject
) -> None:
    with suppress(MaskedLarkError):
        PARSERS[name].parse(data.draw(almost_json(PARSERS[name].valid)))


@pytest.mark.parametrize("name", JSON_PARSERS)
@pytest.mark.parametrize(
    "encoded", [b"[" * 100_000, b'{"a":' * 100_000, b'{"place":' + b"9" * 10_000 + b"}", b"\xff\xfe"]
)
def test_json_that_is_deep_long_or_no_text_is_refused(name: str, encoded: bytes) -> None:
    with pytest.raises(MaskedLarkError):
        PARSERS[name].parse(encoded)


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


@pytest.mark.parametrize("shape", ["(1099511627776, 4)", "(-1, 4)", "(4,4"])
def test_an_evaluation_set_whose_shape_it_does_not_have_is_refused_without_the_memory(shape: str) -> None:
    with pytest.raises(MaskedLarkError):
        read_eval_set(hostile_npz(shape, b""))


def test_an_evaluation_set_that_unpacks_to_more_than_the_limit_is_not_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eval_set, "MAX_BYTES", 1 << 16)
    monkeypatch.delattr(zipfile.ZipFile, "read")
    with pytest.raises(JobRefused, match=f"limit is {1 << 16}") as refused:
        read_eval_set(hostile_npz("(1,1)", bytes(1 << 20)))
    assert refused.value.reason is JobReason.TOO_LARGE
