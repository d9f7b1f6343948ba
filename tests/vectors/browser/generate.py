"""Writes vectors.json, for the client in JavaScript. `python -m tests.vectors.browser.generate`.

A case names one of the bundles, and holds the key of the stream that everything is drawn from, the example,
the time, and what comes of them: report id, time bucket, both plaintexts, and the SHA-256 of the upload.
HPKE draws ephemeral keys of its own, so the upload holds other bytes in the ciphertexts' places: the key
stream of the plaintext's SHA-256, as long as the suite's ciphertext. `laplace` holds the noise sampler alone,
with streams that reach its exact comparison. `rows` holds cases whose examples are raw cells, with the
encoder that their task names (those of tests/vectors/encoder). Keys are public: they protect nothing.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from maskedlark.canonical import encode
from maskedlark.encoding.cells import said
from maskedlark.encoding.encoder import Encoder, read_encoder
from maskedlark.privacy.rejection_strips import COLUMNS, Law, strips
from maskedlark.privacy.samplers import discrete_laplace
from maskedlark.randomness import Randomness, Stream, below, derive_key, seeded, uniform
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.measurement import Measurement
from maskedlark.reports.report import Example, MeasuredValues, split
from maskedlark.reports.sealing import OpeningKey
from maskedlark.reports.task import REPORT_ID_BYTES, Task
from maskedlark.reports.task_kinds import LabelKind
from maskedlark.reports.upload import Report, SealedShare
from maskedlark.rpc.wire import report_to_message
from tests.builders import NOW, HelperKeys, World, world
from tests.vectors.encoder.generate import FILE as ENCODER_FILE

FILE = Path(__file__).with_name("vectors.json")
CASES_OF_A_TASK = 10

_MEASUREMENT: dict[str, Any] = {
    "min_cell_count": 1,
    "values": [
        {"name": "price", "low": 0, "high": 999, "is_clamped": True, "bucket_starts": [0, 10, 100]},
        {"name": "change", "low": -7, "high": 8},
    ],
    "keys": [{"name": "campaign"}, {"name": "region", "size": 3, "categories": ["a \u00e4", 'b"', "c\\"]}],
}
_LONG: dict[str, Any] = {
    "min_cell_count": 5,
    "values": [
        {"name": f"value_{number}", "low": -(2**31) + 1, "high": 2**31 - 1, "is_clamped": number == 1}
        for number in range(3)
    ],
}
_CLASSES: dict[str, Any] = {"labels": {"kind": "classes", "size": 10}, "num_decoys": 9}
_FEW: dict[str, Any] = {"labels": {"kind": "classes", "size": 50, "default_label": 3}, "num_decoys": 4}
_VALUES: dict[str, Any] = {
    "labels": {"kind": "values", "size": 101, "num_buckets": 7, "default_label": 0},
    "num_decoys": 3,
}
_TITLED: dict[str, Any] = {
    "min_cell_count": 1,
    "values": [
        {"name": "paid", "low": 0, "high": 500_000, "title": "Ausgaben \u20ac", "parts_per_unit": 100},
        {"name": "paid_filled", "low": 0, "high": 1, "title": "rows with Ausgaben \u20ac"},
    ],
    "keys": [{"name": "region", "size": 2, "title": "Regi\u00f3n"}],
}
# New tasks go to the end: a task's suite follows from its place here, and what is there stays as it is.
TASKS: dict[str, dict[str, Any]] = {
    "two classes": {},
    "ten classes, an image": {"num_features": 784, **_CLASSES},
    "few decoys of fifty": _FEW,
    "values": _VALUES,
    "values without default": {
        "labels": {"kind": "values", "size": 1000, "num_buckets": 999},
        "num_decoys": 5,
    },
    "values of awkward buckets": {"labels": {"kind": "values", "size": 8, "num_buckets": 3}, "num_decoys": 1},
    "noisy features": {"num_features": 100, "feature_epsilon": 1.0},
    "noisier features": {"num_features": 64, "feature_epsilon": 0.0375, **_FEW},
    "quiet features": {"num_features": 64, "feature_epsilon": 1e5},
    "measured": {"measurement": _MEASUREMENT},
    "count alone": {"measurement": {"min_cell_count": 1}},
    "proven, with an encoder": {"proof": True, "encoder": b"e" * 32},
    "proven, ten classes": {"proof": True, "num_features": 784, **_CLASSES},
    "proven, a hundred classes": {
        "proof": True,
        "labels": {"kind": "classes", "size": 100},
        "num_decoys": 99,
    },
    "proven, measured": {"proof": True, "measurement": _MEASUREMENT, **_VALUES},
    "proven, several polynomials": {"proof": True, "measurement": _LONG},
    "per user": {"unit": "user", "reports_per_user": 3, "fake_report_rate": 0.25},
    "names of all kinds": {"name": 'a "b" \\ \u00e9 \u2603 \U0001f600 \x7f\t\n', "time_bucket_s": 1},
    "floats of all kinds": {"epsilon": 1e-05, "collusion_epsilon": 1e6, "delta": 1e-300, "clip_norm": 0.001},
    "laplace, everything": {
        "mechanism": "laplace",
        "norm": "l1",
        "proof": True,
        "feature_epsilon": 2.5,
        "measurement": _MEASUREMENT,
        "fake_report_rate": 0.5,
        **_FEW,
    },
    "values of a unit, with titles": {"measurement": _TITLED},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one browser draws and makes."""

    task: str
    stream_key: bytes
    example: Example
    unix_s: float


def vector_world(name: str) -> World:
    """The task of a name, with keys that depend on the name alone."""
    suite = list(HpkeSuite)[list(TASKS).index(name) % len(HpkeSuite)]
    return world(keys=(_keys(name, 0, suite), _keys(name, 1, suite)), **TASKS[name])


def cases() -> list[Case]:
    """Ten of each task; of every five, one is a fake report."""
    return [_case(name, number) for name in TASKS for number in range(CASES_OF_A_TASK)]


def _keys(name: str, role: int, suite: HpkeSuite) -> HelperKeys:
    def secret(purpose: str) -> bytes:
        return derive_key(name.encode(), f"browser vectors {purpose} {role}".encode())

    hpke = secret("mlkem 1") + secret("mlkem 2") + secret("x25519") if suite.is_hybrid else secret("x25519")
    return HelperKeys(
        signing=Ed25519PrivateKey.from_private_bytes(secret("signing")),
        agreement=X25519PrivateKey.from_private_bytes(secret("agreement")),
        opening=OpeningKey(key_id=role * 255, suite=suite, secret=hpke),
    )


def _case(name: str, number: int) -> Case:
    task = vector_world(name).task
    dice = seeded(number, f"browser vectors {name}")
    features = below(256, task.num_features, dice).astype(np.uint8)
    return Case(
        task=name,
        stream_key=derive_key(f"{name} {number}".encode(), b"browser vectors stream"),
        example=Example(
            features=features,
            label=None if number % 5 == 4 else _label(task, dice),  # the last of each five
            measured=None if task.measurement is None else _measured(task.measurement, dice),
        ),
        unix_s=NOW + float(uniform(1, dice)[0]) * 86_400,
    )


def _label(task: Task, dice: Randomness) -> float:
    if task.labels.kind is LabelKind.CLASSES:
        return int(below(task.labels.size, 1, dice)[0])
    return float(uniform(1, dice)[0]) * (task.labels.size - 1)


def _measured(measurement: Measurement, dice: Randomness) -> MeasuredValues:
    return MeasuredValues(
        keys=tuple(int(below(key.size or 1 << 32, 1, dice)[0]) for key in measurement.keys),
        values=tuple(
            value.low + int(below(value.high - value.low + 1, 1, dice)[0]) for value in measurement.values
        ),
    )


def _written(case: Case, of: World) -> dict[str, Any]:
    example = case.example
    draws = Stream(case.stream_key)
    report_id = draws(REPORT_ID_BYTES)
    [plaintexts] = split(of.task, [example], [draws], report_ids=[report_id], task_id=of.task.task_id)
    shares = []
    for keys, plaintext in zip(of.keys, plaintexts, strict=True):
        length = len(plaintext) + keys.opening.suite.overhead
        stream = Stream(sha256(plaintext).digest())
        shares.append(SealedShare(key_id=keys.opening.key_id, ciphertext=stream(length)))
    made = Report(
        task_id=of.task.task_id,
        report_id=report_id,
        time_bucket=of.task.time_bucket(case.unix_s),
        shares=(shares[0], shares[1]),
    )
    measured = example.measured
    return {
        "task": case.task,
        "stream_key": case.stream_key.hex(),
        "unix_s": case.unix_s,
        "features": example.features.tobytes().hex(),
        "label": example.label,
        "measured": measured and {"keys": list(measured.keys), "values": list(measured.values)},
        "report_id": report_id.hex(),
        "time_bucket": made.time_bucket,
        "plaintexts": [plaintext.hex() for plaintext in plaintexts],
        "upload_sha256": sha256(report_to_message(made).SerializeToString()).hexdigest(),
    }


def _rows() -> dict[str, Any]:
    """Raw rows of a task that names the encoder of people, in two files."""
    known = json.loads(ENCODER_FILE.read_text())["cases"]
    encoder = read_encoder(known["people"]["encoder"].encode())
    suite = HpkeSuite.X25519_AES128GCM
    of = world(
        keys=(_keys("rows", 0, suite), _keys("rows", 1, suite)),
        encoder=encoder.digest,
        num_features=len(encoder.columns),
    )
    tables = [known[name]["cells"] for name in ("people", "people of another file")]
    rows = [
        dict(zip(cells, row, strict=True)) for cells in tables for row in zip(*cells.values(), strict=True)
    ]
    return {
        "encoder": encode(encoder).decode(),
        **_told(of),
        "cases": [{"row": row, **_written(_row_case(encoder, row, at), of)} for at, row in enumerate(rows)],
    }


def _row_case(encoder: Encoder, row: dict[str, str], number: int) -> Case:
    cells = {name: [said(cell)] for name, cell in row.items()}
    label = float(encoder.labels(cells)[0])
    return Case(
        task="rows",
        stream_key=derive_key(f"rows {number}".encode(), b"browser vectors stream"),
        example=Example(features=encoder.features(cells)[0], label=label),
        unix_s=NOW + 60.0 * number,
    )


def _told(of: World) -> dict[str, Any]:
    """What a page is given of a task, and what it is to find in it."""
    return {
        "bundle": encode(of.bundle).hex(),
        "trusted": [helper.verify_key.hex() for helper in of.task.helpers],
        "task_id": of.task.task_id.hex(),
        "keys": [{"key_id": one.opening.key_id, "overhead": one.opening.suite.overhead} for one in of.keys],
    }


def _laplace() -> list[dict[str, Any]]:
    """Noise under streams that begin in the last strip, and with the coins that are hardest to decide."""
    written = []
    for scale in (1, 2, 7, 100, 255 << 16, (1 << 40) + 12345, 1 << 48):
        of = strips(Law.LAPLACE, scale)
        in_tail = COLUMNS - 1  # the last strip's own column, with a coin of 0
        count = 20
        proposals = count + count // 8 + 16
        random = Stream(derive_key(str(scale).encode(), b"browser vectors laplace"))
        first = np.frombuffer(random(8 * proposals), "<u8").copy()
        other = np.frombuffer(random(8 * proposals), "<u8").copy()
        first[:3] = [in_tail, in_tail | 1 << 32, in_tail | 5 << 33]
        bound = int(of.sure[3])
        first[3:6] = [3 | bound << 33, 3 | (bound + 1) << 33, 3 | (1 << 32) | ((1 << 31) - 1) << 33]
        stream = first.tobytes() + other.tobytes() + random(4096)
        drawn = discrete_laplace(scale, count, _replayed(stream))
        written.append({"scale": scale, "stream": stream.hex(), "values": drawn.tolist()})
    return written


def _replayed(stream: bytes) -> Randomness:
    rest = bytearray(stream)

    def take(count: int) -> bytes:
        taken = bytes(rest[:count])
        del rest[:count]
        return taken

    return take


def vectors() -> dict[str, Any]:
    """The whole file."""
    worlds = {name: vector_world(name) for name in TASKS}
    return {
        "bundles": {name: _told(of) for name, of in worlds.items()},
        "cases": [_written(case, worlds[case.task]) for case in cases()],
        "laplace": _laplace(),
        "rows": _rows(),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(vectors(), indent=1) + "\n")
