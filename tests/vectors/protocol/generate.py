"""Writes tests/vectors/1.0/protocol.json: `python -m tests.vectors.protocol.generate FILE`.

One run of the protocol with the bytes of every step and all keys, for other implementations: docs/spec says
what each is. HPKE draws its own ephemeral keys, so a second run of this program gives other ciphertexts: the
file in the folder 1.0 is frozen, and tests read it with today's code.
"""

import base64
import json
import struct
import sys
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from maskedlark.canonical import digest, encode
from maskedlark.hmac_sha256 import hmac_sha256
from maskedlark.model import weights
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import random_vector
from maskedlark.numbers.field import to_bytes as elements_to_bytes
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_scale, noise_vector, split_scale, tail_bound
from maskedlark.randomness import Stream, below, derive_key, seeded
from maskedlark.releases.discovery import answer_discovery
from maskedlark.releases.evaluation import answer_evaluation
from maskedlark.releases.grouping import answer_query, cells_to_show
from maskedlark.releases.job import JobSpec
from maskedlark.releases.query import Axis, Measure, MeasureKind, codes_digest
from maskedlark.releases.release import combine
from maskedlark.releases.update import Phase, UpdateJob, UpdateRound, UpdateSpec, answer_update
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.reports.sealing import OpeningKey, share_info
from maskedlark.reports.share_seed import expand_share
from maskedlark.reports.updates import UpdateSum, update_info
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import decode_report, encode_report
from tests.builders import (
    NOW,
    HelperKeys,
    World,
    examples,
    id_of_reports,
    job_spec,
    reports,
    shares_for,
    world,
)
from tests.maskedlark.query_specs import discovery, evaluation, query
from tests.update_builders import random_vector as random_update
from tests.update_builders import update_opener, update_reports, update_settings

FILE: Final = Path(__file__).parents[1] / "1.0" / "protocol.json"
NUMERICS: Final = Path(__file__).parents[1] / "numerics" / "vectors.json"
RECORDS: Final = 12
_SUITES: Final = (HpkeSuite.X25519_AES128GCM, HpkeSuite.MLKEM768_X25519_CHACHA20POLY1305)
_MEASUREMENT: Final[dict[str, Any]] = {
    "min_cell_count": 2,
    "values": [
        {"name": "price", "low": 0, "high": 999, "is_clamped": True, "bucket_starts": [0, 10, 100]},
        {"name": "change", "low": -7, "high": 8},
    ],
    "keys": [{"name": "campaign"}, {"name": "place", "size": 3, "categories": ["oslo", "lima", "a \u00e4"]}],
}
TASKS: Final[dict[str, dict[str, Any]]] = {
    "labels": {"labels": {"kind": "classes", "size": 5, "default_label": 2}, "num_decoys": 3},
    "measured": {"measurement": _MEASUREMENT, "name": 'a "name" \\ \u00e9 \u2603 \U0001f600 \x7f\t\n'},
    "proven": {"proof": True, "measurement": _MEASUREMENT},
    "noisy counts": {
        "measurement": _MEASUREMENT,
        "mechanism": "laplace",
        "norm": "l1",
        "epsilon": 1e-05,
        "delta": 1e-300,
    },
    "updates": update_settings(),
}


def keys() -> tuple[HelperKeys, HelperKeys]:
    """Both helpers' private keys, the same in every run."""
    first, second = (_keys(role, suite) for role, suite in enumerate(_SUITES))
    return first, second


def _keys(role: int, suite: HpkeSuite) -> HelperKeys:
    def secret(purpose: str) -> bytes:
        return derive_key(b"protocol vectors", f"{purpose} {role}".encode())

    hpke = secret("mlkem 1") + secret("mlkem 2") + secret("x25519") if suite.is_hybrid else secret("x25519")
    return HelperKeys(
        signing=Ed25519PrivateKey.from_private_bytes(secret("signing")),
        agreement=X25519PrivateKey.from_private_bytes(secret("agreement")),
        opening=OpeningKey(key_id=7 + 248 * role, suite=suite, secret=hpke),
    )


def worlds() -> dict[str, World]:
    """The tasks, each signed by both helpers."""
    return {name: world(keys=keys(), **settings) for name, settings in TASKS.items()}


def _functions() -> dict[str, Any]:
    secret, key = b"s" * 32, bytes(range(32))
    return {
        "H": [
            {
                "purpose": purpose,
                "parts": [one.hex() for one in parts],
                "digest": digest(purpose, *parts).hex(),
            }
            for purpose, parts in (("task", [b""]), ("a b", [b"", b"x"]), ("a b", [b"x", b""]), ("none", []))
        ],
        "K": [
            {
                "secret": secret.hex(),
                "purpose": "view",
                "context": c.hex(),
                "key": derive_key(secret, b"view", c).hex(),
            }
            for c in (b"", b"context")
        ],
        "E": [
            {
                "secret": secret.hex(),
                "purpose": "share",
                "context": (bytes(32) + bytes(16) + b"\0").hex(),
                "key": hmac_sha256(secret, b"maskedlark/v1 share\0" + bytes(49) + b"\1").hex(),
                "field": [str(one) for one in expand_share(secret, bytes(32), bytes(16), 0, 4).tolist()],
            }
        ],
        "stream": [{"key": key.hex(), "bytes": Stream(key)(40).hex()}],
        "field": [
            {"key": key.hex(), "elements": [str(one) for one in random_vector(5, Stream(key)).tolist()]}
        ],
        "below": [
            {"t": t, "key": key.hex(), "numbers": below(t, 8, Stream(key)).tolist()}
            for t in (1, 2, 3, 29, 65_536)
        ],
    }


def _floats() -> list[list[str]]:
    values = (
        0.0,
        1.0,
        0.5,
        0.1,
        1e-4,
        1e-5,
        1.5e-7,
        123456.75,
        1e15,
        1e16,
        1.5e300,
        5e-324,
        2.0**-10,
        1e-300,
    )
    return [[struct.pack("<d", one).hex(), json.dumps(one)] for one in values]


def _noise() -> list[dict[str, Any]]:
    cases = []
    for mechanism, scale, count in product(
        (Mechanism.LAPLACE, Mechanism.GAUSSIAN), (1, 7, 1_000, 1 << 20, 1 << 48), (1, 40)
    ):
        key = derive_key(f"{scale} {count}".encode(), b"noise vectors")
        cases.append(
            {
                "mechanism": mechanism.value,
                "scale": scale,
                "key": key.hex(),
                "numbers": [str(one) for one in noise_vector(mechanism, scale, count, Stream(key)).tolist()],
            }
        )
    return cases


def _scales() -> list[dict[str, Any]]:
    cases = []
    for multiplier, sensitivity in ((1.0, 1 << 32), (0.3, 1 << 20), (1.7, 12345), (2.0**-10, 1 << 20)):
        units = noise_scale(Mechanism.GAUSSIAN, multiplier, sensitivity)
        cases.append(
            {
                "multiplier": multiplier,
                "sensitivity": sensitivity,
                "units": units,
                "split": split_scale(units),
                "tail of 1000": {one.value: tail_bound(one, units, 1000) for one in Mechanism},
            }
        )
    return cases


def _models() -> list[dict[str, Any]]:
    found = []
    for case in json.loads(NUMERICS.read_text()):
        model = parse(base64.b64decode(case["onnx"]), num_features=len(case["features"][0]))
        encoded = base64.b64decode(case["weights"])
        found.append(
            {
                "name": case["name"],
                "model_digest": model.digest.hex(),
                "weights_digest": weights.digest(encoded).hex(),
            }
        )
    return found


def _weights() -> dict[str, Any]:
    tensors = [
        np.array([0.0, 1.0, -2.5, 0.1], np.float32),
        np.zeros(2, np.float32),
        np.array([3e8], np.float32),
    ]
    encoded = weights.encode([weights.quantise(one) for one in tensors])
    return {
        "tensors": [one.astype("<f4").tobytes().hex() for one in tensors],
        "encoded": encoded.hex(),
        "weights_digest": weights.digest(encoded).hex(),
    }


def _told(of: World) -> dict[str, Any]:
    return {
        "bundle": encode(of.bundle).decode(),
        "task_id": of.task.task_id.hex(),
        "plaintext_lengths": [of.task.plaintext_length(role) for role in (0, 1)],
        "pair_key": of.pair(0)._secret.hex(),  # nothing in the product reads it
        "view_key": of.pair(0).view_key.secret_bytes().hex(),
    }


def _examples(of: World) -> list[Example]:
    made = examples(of.task, RECORDS, seeded(1, "protocol vectors"))
    if of.task.measurement is None:
        return made
    return [
        Example(
            features=one.features,
            label=None if number == RECORDS - 1 else one.label,
            measured=MeasuredValues(
                keys=(number % 3 * 1000, number % 2), values=(number * 90, number % 16 - 7)
            ),
        )
        for number, one in enumerate(made)
    ]


def _reports(name: str, of: World) -> list[dict[str, Any]]:
    given = _examples(of)
    sealed = reports(of, given, seeded(2, f"protocol vectors {name}"))
    opened = [of.opener(role).open(shares_for(sealed, role)) for role in (0, 1)]
    written = []
    for number, (example, report) in enumerate(zip(given, sealed, strict=True)):
        tags = [one.admitted.view_tags[number].tobytes().hex() for one in opened]
        measured = example.measured
        written.append(
            {
                "task": name,
                "example": {
                    "features": example.features.tobytes().hex(),
                    "label": example.label,
                    "keys": None if measured is None else list(measured.keys),
                    "values": None if measured is None else list(measured.values),
                },
                **_sealed(of, report),
                "view_tags": tags,
            }
        )
    return written


def _sealed(of: World, report: Report) -> dict[str, Any]:
    infos, plaintexts = [], []
    for role, (key, share) in enumerate(zip(of.keys, report.shares, strict=True)):
        bound: dict[str, Any] = {
            "task_id": report.task_id,
            "report_id": report.report_id,
            "time_bucket": report.time_bucket,
            "role": role,
            "key_id": share.key_id,
        }
        info = update_info(round_id=report.round_id, **bound) if report.round_id else share_info(**bound)
        infos.append(info.hex())
        plaintexts.append(key.opening.open(share.ciphertext, info).hex())
    return {
        "report_id": report.report_id.hex(),
        "time_bucket": report.time_bucket,
        "round_id": report.round_id.hex(),
        "info": infos,
        "plaintexts": plaintexts,
        "sealed": [one.ciphertext.hex() for one in report.shares],
        "upload": encode_report(report).hex(),
    }


def report_of(written: dict[str, Any]) -> Report:
    """The report of a row of the file."""
    return decode_report(bytes.fromhex(written["upload"]))


def _dataset(name: str, of: World, rows: list[dict[str, Any]]) -> dict[str, Any]:
    sealed = [report_of(one) for one in rows]
    tags = np.array([list(bytes.fromhex(one["view_tags"][0])) for one in rows], np.uint8)
    return {"task": name, "dataset_id": id_of_reports(of.task.task_id, sealed, tags).hex()}


def _rounds(of: World, dataset_id: bytes) -> list[dict[str, Any]]:
    specs = [
        job_spec(of.task.task_id, dataset_id=dataset_id, rounds=10, sampling_numerator=1 << 31),
        job_spec(
            of.task.task_id,
            dataset_id=dataset_id,
            rounds=10,
            epoch_steps=3,
            sampling_numerator=(1 << 32) // 3,
            is_sample_public=True,
            is_clip_adaptive=True,
        ),
    ]
    return [_round(of, spec, index) for spec in specs for index in (0, 4)]


def _round(of: World, spec: JobSpec, index: int) -> dict[str, Any]:
    numerics, records = sha256(b"numerics").digest(), 400
    sent = b"weights" + (struct.pack("<d", 0.5) if spec.is_clip_adaptive else b"")
    script = spec.round_transcript(round_index=index, weights=sent, numerics=numerics)
    pair = of.pair(0)
    sampled = spec.draw_sample(pair, index, script, records)
    work = spec.records_evaluated(of.task, records)
    others = np.flatnonzero(~sampled)
    added = others[pair.padding(script, len(others), min(len(others), max(0, work - int(sampled.sum()))))]
    values_digest = sha256(b"values").digest()
    return {
        "spec": encode(spec).decode(),
        "job_digest": spec.digest.hex(),
        "round_index": index,
        "sent": sent.hex(),
        "numerics_digest": numerics.hex(),
        "transcript": script.hex(),
        "records": records,
        "sampled": np.flatnonzero(sampled).tolist(),
        "work": work,
        "added": added.tolist(),
        "blind": elements_to_bytes(pair.blind(script, 5)).hex(),
        "values_digest": values_digest.hex(),
        "agreement_tag": pair.agreement_tag(script, values_digest).hex(),
    }


def datasets_of(of: World, rows: list[dict[str, Any]]) -> tuple[OpenedDataset, OpenedDataset]:
    """Both helpers' datasets of the file's reports."""
    return of.datasets([report_of(one) for one in rows])


def _queries(
    of: World, noisy: World, dataset_id: bytes, opened: tuple[OpenedDataset, OpenedDataset]
) -> list[Any]:
    codes = np.array([0, 1000, 5000], np.uint32)
    axes = (Axis(key="campaign", size=3, codes_digest=codes_digest(codes)), Axis(key="place", size=2))
    measures = (
        Measure(value="count", scale=1 << 16),
        Measure(value="change", scale=3),
        Measure(value="price", kind=MeasureKind.HISTOGRAM, scale=1),
    )
    one = query(of, dataset_id=dataset_id, group_by=axes, measures=measures, levels=(0, 1, 2))
    answers = [
        answer_query(
            task=of.task,
            spec=one,
            pair=of.pair(role),
            shares=opened[role].shares,
            domains=[codes, None],
            noise=lambda _, __, count: np.zeros(count, np.int64),
        )
        for role in (0, 1)
    ]
    loud = query(
        noisy,
        dataset_id=dataset_id,
        group_by=axes,
        measures=measures,
        levels=(1, 2),
        noise_multiplier=1.0,
        threshold_noise_multiplier=0.8,
    )
    measured = opened[0].shares.measured
    assert measured is not None
    shown = cells_to_show(
        noisy.task, loud, noisy.pair(0).common_noise(loud.transcript), measured, [codes, None]
    )
    found = discovery(of, dataset_id=dataset_id, keys=("campaign", "place"), max_codes=4)
    discovered = [
        answer_discovery(task=of.task, spec=found, pair=of.pair(role), role=role, shares=opened[role].shares)
        for role in (0, 1)
    ]
    scored = evaluation(of, dataset_id=dataset_id, num_bins=4)
    bins = np.arange(len(opened[0])) % 4
    evaluated = [
        answer_evaluation(
            task=of.task,
            spec=scored,
            pair=of.pair(role),
            shares=opened[role].shares,
            bins=bins,
            choices=None,
            noise=lambda _, __, count: np.zeros(count, np.int64),
        )
        for role in (0, 1)
    ]
    return [
        {
            "task": "measured",
            "kind": "query",
            "spec": encode(one).decode(),
            "beside": codes.astype("<u4").tobytes().hex(),
            **_answered(one.transcript, answers),
        },
        {
            "task": "noisy counts",
            "kind": "query",
            "spec": encode(loud).decode(),
            "beside": codes.astype("<u4").tobytes().hex(),
            "transcript": loud.transcript.hex(),
            "keys": measured.keys.tolist(),
            "cells": [one.tolist() for one in shown],
        },
        {
            "task": "measured",
            "kind": "discovery",
            "spec": encode(found).decode(),
            **_answered(found.transcript, discovered),
        },
        {
            "task": "measured",
            "kind": "evaluation",
            "spec": encode(scored).decode(),
            "bins": bins.tolist(),
            **_answered(scored.transcript, evaluated),
        },
    ]


def _answered(script: bytes, answers: list[Any]) -> dict[str, Any]:
    return {
        "transcript": script.hex(),
        "answers": [one.encode().hex() for one in answers],
        "sum": combine(*answers).tolist(),
    }


def _updates(of: World) -> dict[str, Any]:
    job = UpdateJob(
        job_id=b"u" * 16,
        task_id=of.task.task_id,
        phases=(
            Phase(rounds=2, sampling_rate=0.5, noise_multiplier=0.0),
            Phase(rounds=1, sampling_rate=1.0, noise_multiplier=0.0),
        ),
        instructions='{"any":"text"}',
    )
    content = b"\2\0\0\0{}" + struct.pack("<3f", 0.0, 1.0, -2.5)
    one = UpdateRound(
        job=job, round_index=1, content_digest=digest("federated round", content), clip_norm=0.5
    )
    assert of.task.updates is not None
    clip = of.task.clip
    vectors = [
        random_update(of.task.updates, type(clip)(norm=clip.norm, bound=0.5, frac_bits=clip.frac_bits), seed)
        for seed in range(3)
    ]
    sealed = update_reports(of, one, vectors, seeded(3, "protocol vectors"))
    rows, tags = [], []
    for vector, report in zip(vectors, sealed, strict=True):
        told = [
            update_opener(of, role, one).open(report.report_id, report.time_bucket, report.shares[role])
            for role in (0, 1)
        ]
        tags.append(list(told[0].view_tag))
        rows.append(
            {
                "task": "updates",
                "update": [str(value) for value in vector.tolist()],
                **_sealed(of, report),
                "view_tags": [part.view_tag.hex() for part in told],
            }
        )
    dataset_id = id_of_reports(of.task.task_id, sealed, np.array(tags, np.uint8))
    spec = UpdateSpec(dataset_id=dataset_id, round=one)
    answers = []
    for role in (0, 1):
        total = UpdateSum(form=of.task.updates, role=role, task_id=of.task.task_id)
        for report in sealed:
            opened = update_opener(of, role, one).open(
                report.report_id, report.time_bucket, report.shares[role]
            )
            total.add(report.report_id, opened.payload)
        answers.append(
            answer_update(
                task=of.task,
                spec=spec,
                pair=of.pair(role),
                records=len(sealed),
                vector=total.total(),
                noise=lambda _, __, count: np.zeros(count, np.int64),
            )
        )
    return {
        "job_digest": job.digest.hex(),
        "content": content.hex(),
        "round": encode(one).decode(),
        "round_id": one.round_id.hex(),
        "release_id": one.query_id.hex(),
        "reports": rows,
        "dataset_id": dataset_id.hex(),
        "spec": encode(spec).decode(),
        **_answered(spec.transcript, answers),
    }


def _helpers() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "signing": one.signing.private_bytes_raw().hex(),
            "verify_key": one.signing.public_key().public_bytes_raw().hex(),
            "agreement": one.agreement.private_bytes_raw().hex(),
            "agreement_key": one.agreement.public_key().public_bytes_raw().hex(),
            "hpke": {
                "key_id": one.opening.key_id,
                "suite": one.opening.suite.value,
                "secret": one.opening.secret_bytes().hex(),
                "public_key": one.opening.public().public_key.hex(),
            },
        }
        for name, one in zip(("north", "south"), keys(), strict=True)
    ]


def vectors() -> dict[str, Any]:
    """The whole file."""
    of = worlds()
    rows = {name: _reports(name, of[name]) for name in ("labels", "measured", "proven")}
    datasets = [_dataset(name, of[name], rows[name]) for name in rows]
    measured_id = bytes.fromhex(datasets[1]["dataset_id"])
    opened = datasets_of(of["measured"], rows["measured"])
    return {
        "version": 1,
        "now": NOW,
        "functions": _functions(),
        "floats": _floats(),
        "helpers": _helpers(),
        "tasks": {name: _told(one) for name, one in of.items()},
        "reports": [one for some in rows.values() for one in some],
        "datasets": datasets,
        "rounds": _rounds(of["labels"], bytes.fromhex(datasets[0]["dataset_id"])),
        "queries": _queries(of["measured"], of["noisy counts"], measured_id, opened),
        "updates": _updates(of["updates"]),
        "scales": _scales(),
        "noise": _noise(),
        "weights": _weights(),
        "models": _models(),
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(vectors(), indent=1) + "\n")
