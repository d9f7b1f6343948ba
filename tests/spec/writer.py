"""A browser, and a device, written from docs/spec alone.

    python -I tests/spec/writer.py BUNDLE TRUSTED_KEY TRUSTED_KEY < examples > reports

Of the product it imports nothing: the standard library, and `cryptography` for Ed25519, AES, HPKE. An example
is a line of JSON, `{"features": [...], "label": 1}`, with `keys` and `values` in a task with a measurement,
and `update` with a canonical `round` in one of updates; a report is a line of base64, an encoded `Report`.
"""

import base64
import hashlib
import hmac
import json
import secrets
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PublicKey, Suite

P = 2**64 - 2**32 + 1
PREFIX = b"maskedlark/v1 "
VERSIONS = (1,)
random = secrets.SystemRandom()


class Refused(Exception):
    """The bundle is not one to seal to, or the example does not fit the task."""


# Functions (index.md)


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def framed(purpose: str, *parts: bytes) -> bytes:
    return hashlib.sha256(
        PREFIX + purpose.encode() + b"".join(u64(len(part)) + part for part in parts)
    ).digest()


def expand(secret: bytes, purpose: bytes, context: bytes) -> bytes:
    return hmac.digest(secret, PREFIX + purpose + b"\0" + context + b"\1", "sha256")


def field(key: bytes, count: int) -> list[int]:
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    found: list[int] = []
    while len(found) < count:
        (word,) = struct.unpack("<Q", stream.update(bytes(8)))
        if word < P:
            found.append(word)
    return found


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


# Tasks (tasks.md, sealing.md)

ALWAYS = {
    "Task": "clip_norm collusion_epsilon delta epsilon expires_at fake_report_rate feature_epsilon frac_bits "
    "helpers labels max_dataset_size measurement mechanism min_batch_size name noise norm num_decoys "
    "num_features origin salt starts_at time_bucket_s version",
    "LabelSpace": "default_label kind num_buckets size",
    "HelperIdentity": "agreement_key name verify_key",
    "Measurement": "keys min_cell_count values",
    "Value": "bucket_starts high is_clamped low name",
    "Key": "categories name size",
    "UpdateForm": "cover has_clip_count has_weight num_parameters",
    "TaskBundle": "key_lists signatures task",
    "SignedKeyList": "key_list signature",
    "KeyList": "keys verify_key",
    "HpkeKey": "key_id public_key suite",
}
UNLESS: Final[dict[str, dict[str, Any]]] = {
    "Task": {"encoder": None, "proof": False, "reports_per_user": 1, "unit": "report", "updates": None},
    "KeyList": {"not_after": 0},
    "Value": {"parts_per_unit": 1, "title": None},
    "Key": {"title": None},
}
SUITES = {
    "x25519-aes128gcm": (KEM.X25519, AEAD.AES_128_GCM),
    "x25519-chacha20poly1305": (KEM.X25519, AEAD.CHACHA20_POLY1305),
    "mlkem768-x25519-aes128gcm": (KEM.MLKEM768_X25519, AEAD.AES_128_GCM),
    "mlkem768-x25519-chacha20poly1305": (KEM.MLKEM768_X25519, AEAD.CHACHA20_POLY1305),
}


def check_fields(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """All fields that are always written, no unknown ones, none that says what its absence says."""
    known = UNLESS.get(name, {})
    missing = set(ALWAYS[name].split()) - value.keys()
    unknown = value.keys() - set(ALWAYS[name].split()) - known.keys()
    idle = [field for field, absent in known.items() if field in value and value[field] == absent]
    if missing or unknown or idle:
        raise Refused(f"{name}: fields {sorted(missing | unknown)} {idle}")
    return value


def check_task(task: dict[str, Any]) -> None:
    if type(task.get("version")) is not int or task["version"] not in VERSIONS:
        raise Refused(f"the task is of version {task.get('version')}; this writer implements {VERSIONS}")
    check_fields("Task", task)
    check_fields("LabelSpace", task["labels"])
    for helper in task["helpers"]:
        check_fields("HelperIdentity", helper)
    if task["measurement"] is not None:
        check_fields("Measurement", task["measurement"])
        for value in task["measurement"]["values"]:
            check_fields("Value", value)
        for key in task["measurement"]["keys"]:
            check_fields("Key", key)
    if "updates" in task:
        check_fields("UpdateForm", task["updates"])


@dataclass
class Bundle:
    task: dict[str, Any]
    task_id: bytes
    keys: list[dict[str, Any]]


def open_bundle(encoded: bytes, trusted: Sequence[str], now: float) -> Bundle:
    """Verify a bundle as it stands."""
    try:
        bundle = json.loads(encoded)
    except ValueError:
        raise Refused("the bundle is not JSON") from None
    if canonical(bundle) != encoded:
        raise Refused("the bundle is not in its canonical spelling")
    check_task(bundle["task"])
    check_fields("TaskBundle", bundle)
    task = canonical(bundle["task"])
    keys = []
    for helper, signature, signed in zip(
        bundle["task"]["helpers"], bundle["signatures"], bundle["key_lists"], strict=True
    ):
        listed = check_fields("KeyList", check_fields("SignedKeyList", signed)["key_list"])
        if helper["verify_key"] not in trusted or listed["verify_key"] != helper["verify_key"]:
            raise Refused("a helper that is not trusted, or a list of another one")
        if now > listed.get("not_after", 0):
            raise Refused("a key list is over")
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(helper["verify_key"]))
            key.verify(bytes.fromhex(signature), PREFIX + b"task\0" + task)
            key.verify(bytes.fromhex(signed["signature"]), PREFIX + b"hpke keys\0" + canonical(listed))
        except InvalidSignature:
            raise Refused("a signature does not verify") from None
        keys.append(check_fields("HpkeKey", listed["keys"][0]))
    return Bundle(bundle["task"], framed("task", task), keys)


def seal(key: dict[str, Any], plaintext: bytes, info: bytes) -> bytes:
    kem, aead = SUITES[key["suite"]]
    public = bytes.fromhex(key["public_key"])
    sealed_to: X25519PublicKey | MLKEM768X25519PublicKey
    if kem is KEM.X25519:
        sealed_to = X25519PublicKey.from_public_bytes(public)
    else:
        sealed_to = MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(public[:1184]),
            X25519PublicKey.from_public_bytes(public[1184:]),
        )
    return Suite(kem, KDF.HKDF_SHA256, aead).encrypt(plaintext, sealed_to, info)


# Reports (reports.md)


def round_at_random(number: Fraction) -> int:
    """The integer below or above a fraction, with the fraction as expectation."""
    below = floor(number)
    rest = number - below
    return below + (random.randrange(rest.denominator) < rest.numerator)


def reachable(labels: dict[str, Any]) -> list[int]:
    if labels["kind"] == "classes":
        return list(range(labels["size"]))
    ends = [
        Fraction(i * (labels["size"] - 1), labels["num_buckets"]) for i in range(labels["num_buckets"] + 1)
    ]
    return sorted({rounded for end in ends for rounded in (floor(end), ceil(end))})


def integer_label(labels: dict[str, Any], label: float) -> int:
    if not 0 <= label <= labels["size"] - 1:
        raise Refused("the label is outside the space")
    if labels["kind"] == "classes":
        return int(label)
    width = Fraction(labels["size"] - 1, labels["num_buckets"])
    return round_at_random(round_at_random(Fraction(label) / width) * width)


def candidates(task: dict[str, Any], label: float | None) -> tuple[list[int], list[int]]:
    real = None if label is None else integer_label(task["labels"], label)
    chosen = [] if real is None else [real]
    default = task["labels"]["default_label"]
    if default is not None and default not in chosen:
        chosen.append(default)
    others = [other for other in reachable(task["labels"]) if other not in chosen]
    chosen += random.sample(others, task["num_decoys"] + 1 - len(chosen))
    random.shuffle(chosen)
    return chosen, [int(one == real) for one in chosen]


def is_true_with(exponent: Fraction) -> bool:
    """True with probability exp(-exponent), for a fraction of 0 or more, exactly."""
    for _ in range(floor(exponent)):
        if not is_true_with_at_most_one(Fraction(1)):
            return False
    return is_true_with_at_most_one(exponent - floor(exponent))


def is_true_with_at_most_one(exponent: Fraction) -> bool:
    tries = 1  # von Neumann: the number of tries is odd with probability exp(-exponent)
    while random.randrange(exponent.denominator * tries) < exponent.numerator:
        tries += 1
    return tries % 2 == 1


def discrete_laplace(scale: int) -> int:
    """P(n) proportional to exp(-|n| / scale)."""
    while True:
        size = 0
        while is_true_with(Fraction(1, 1)):
            size += 1
        rest = random.randrange(scale)
        if not is_true_with(Fraction(rest, scale)):
            continue
        number, is_negative = size * scale + rest, random.getrandbits(1)
        if number or not is_negative:
            return -number if is_negative else number


def noised(features: list[int], epsilon: float | None) -> list[int]:
    if epsilon is None:
        return features
    scale = ceil((255 << 16) / Fraction(epsilon))
    return [min(255, max(0, one + ((discrete_laplace(scale) + (1 << 15)) >> 16))) for one in features]


def measured(task: dict[str, Any], example: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Codes of the keys, and the columns."""
    declared, is_real = task["measurement"], example.get("label") is not None
    if declared is None:
        return [], []
    for key, code in zip(declared["keys"], example["keys"], strict=True):
        if not 0 <= code < (1 << 32 if key["size"] is None else key["size"]):
            raise Refused("a code is not below its key's size")
    columns = [1]
    for value, told in zip(declared["values"], example["values"], strict=True):
        held = min(value["high"], max(value["low"], told))
        if held != told and not value["is_clamped"]:
            raise Refused("a value is outside its bounds")
        starts = value["bucket_starts"]
        bucket = max((at for at, start in enumerate(starts) if start <= held), default=None)
        columns += [held, *(int(at == bucket) for at in range(len(starts)))]
    return example["keys"], columns if is_real else [0] * len(columns)


def plaintexts(bundle: Bundle, example: dict[str, Any], report_id: bytes) -> list[bytes]:
    task = bundle.task
    if len(example["features"]) != task["num_features"]:
        raise Refused("the task has another number of features")
    labels, mask = candidates(task, example.get("label"))
    codes, columns = measured(task, example)
    view = b"".join(
        (
            bytes([2 if task.get("proof") else 1]),
            secrets.token_bytes(16),
            bytes(noised(example["features"], task["feature_epsilon"])),
            b"".join(map(u32, labels)),
            b"".join(map(u32, codes)),
        )
    )
    if task.get("proof"):
        return proven(bundle, report_id, view, mask, columns)
    secret = [*mask, *columns]
    first = [random.randrange(P) for _ in secret]
    second = [(x - r) % P for x, r in zip(secret, first, strict=True)]
    return [view + u64(*first), view + u64(*second)]


# Proofs (proofs.md)


def bit_weights(low: int, high: int) -> list[int]:
    k = (high - low).bit_length()
    return [*(1 << at for at in range(k - 1)), high - low - (1 << (k - 1)) + 1]


def bits_of(low: int, high: int, value: int) -> list[int]:
    weights, rest = bit_weights(low, high), value - low
    last = int(rest >= 1 << (len(weights) - 1))
    rest -= last * weights[-1]
    return [rest >> at & 1 for at in range(len(weights) - 1)] + [last]


def interpolated(values: list[int], first: int, at: int) -> int:
    """The polynomial with these values at first, first + 1, ..., at a point."""
    total = 0
    for i, value in enumerate(values):
        above = below = 1
        for k in range(len(values)):
            if k != i:
                above = above * (at - first - k) % P
                below = below * (i - k) % P
        total += value * above * pow(below, -1, P)
    return total % P


def zeros_at_bits(m: int, at: int) -> int:
    product = 1
    for node in range(1, m + 1):
        product = product * (at - node) % P
    return product


def power_sum(vector: list[int], t: int) -> int:
    return sum(x * pow(t, c, P) for c, x in enumerate(vector, start=1)) % P


def proven(bundle: Bundle, report_id: bytes, view: bytes, mask: list[int], columns: list[int]) -> list[bytes]:
    declared = bundle.task["measurement"]
    n = sum(mask)
    vectors, at = [mask], 1
    polynomials: list[list[int]] = []
    for value in declared["values"] if declared else []:
        held, buckets = columns[at], len(value["bucket_starts"])
        if buckets:
            vectors.append(columns[at + 1 : at + 1 + buckets])
        at += 1 + buckets
        bits = (
            bits_of(value["low"], value["high"], held)
            if n
            else [0] * len(bit_weights(value["low"], value["high"]))
        )
        if polynomials and len(polynomials[-1]) + len(bits) <= 64:
            polynomials[-1] += bits
        else:
            polynomials.append(bits)
    rho = [[random.randrange(P) for _ in range(3)] for _ in vectors]
    curves = [
        [(2 * bit - n) % P for bit in bits] + [random.randrange(P) for _ in range(3)] for bits in polynomials
    ]
    elements = [x for vector in vectors for x in vector] + [bit for bits in polynomials for bit in bits]
    elements += [one for three in rho for one in three] + [one * one % P for three in rho for one in three]
    for curve in curves:
        m = len(curve) - 3
        elements += curve[m:]
        elements += [
            (interpolated(curve, 1, node) ** 2 - n) * pow(zeros_at_bits(m, node), -1, P) % P
            for node in range(m + 1, 2 * m + 6)
        ]
    seed = secrets.token_bytes(32)
    first = field(expand(seed, b"share", bundle.task_id + report_id + b"\0"), len(elements))
    shares = [u64(*first), u64(*((x - r) % P for x, r in zip(elements, first, strict=True)))]
    largest = max((len(bits) for bits in polynomials), default=0)
    while True:
        blinds = [secrets.token_bytes(32) for _ in (0, 1)]
        coms = [
            framed("proof part", bundle.task_id, report_id, bytes([r]), blinds[r], view, shares[r])
            for r in (0, 1)
        ]
        points = [word % P for word in struct.unpack("<3Q", framed("proof points", *coms)[:24])]
        if len(set(points)) == 3 and not any(1 <= t <= largest for t in points):
            break
    openings = [
        (power_sum(vector, t) + blind) % P
        for vector, three in zip(vectors, rho, strict=True)
        for t, blind in zip(points, three, strict=True)
    ]
    openings += [interpolated(curve, 1, t) for curve in curves for t in points]
    tails = [seed, shares[1]]
    return [view + u64(*openings) + coms[1 - r] + blinds[r] + tails[r] for r in (0, 1)]


# Updates (updates.md)


def update_plaintexts(bundle: Bundle, example: dict[str, Any], report_id: bytes) -> list[bytes]:
    form, update = bundle.task["updates"], example["update"]
    if len(update) != form["num_parameters"] + form["has_weight"] + form["has_clip_count"]:
        raise Refused("the update has another length")
    clip = floor(Fraction(json.loads(example["round"])["clip_norm"]) * 2 ** bundle.task["frac_bits"])
    if sum(one * one for one in update[: form["num_parameters"]]) > clip * clip:
        raise Refused("the update is longer than the clip bound")
    head, seed = b"\1" + secrets.token_bytes(16), secrets.token_bytes(32)
    first = field(expand(seed, b"share", bundle.task_id + report_id + b"\0"), len(update))
    return [head + seed, head + u64(*((x - r) % P for x, r in zip(update, first, strict=True)))]


def round_id(bundle: Bundle, encoded: bytes) -> bytes:
    told = json.loads(encoded)
    job = told["job"]
    if (
        canonical(told) != encoded
        or bytes.fromhex(job["task_id"]) != bundle.task_id
        or job["version"] not in VERSIONS
    ):
        raise Refused("the round is not canonical, or of another task or version")
    return framed(
        "update round",
        bundle.task_id,
        framed("update job", canonical(job)),
        u64(told["round_index"]),
        bytes.fromhex(told["content_digest"]),
        float(told["clip_norm"]).hex().encode(),
    )


# Uploads (reports.md)


def varint(number: int) -> bytes:
    encoded = b""
    while number > 127:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """Of (number, value), an int or bytes."""
    return b"".join(
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in fields
    )


def report(bundle: Bundle, example: dict[str, Any], now: float) -> bytes:
    task = bundle.task
    report_id, bucket = secrets.token_bytes(16), int(now) // task["time_bucket_s"]
    if (
        not task["starts_at"] // task["time_bucket_s"]
        <= bucket
        <= (task["expires_at"] - 1) // task["time_bucket_s"]
    ):
        raise Refused("outside the task's period")
    if "updates" in task:
        both, answered = (
            update_plaintexts(bundle, example, report_id),
            round_id(bundle, example["round"].encode()),
        )
        bound = PREFIX + b"update share\0" + bundle.task_id + answered + report_id
    else:
        both, answered = plaintexts(bundle, example, report_id), b""
        bound = PREFIX + b"input share\0" + bundle.task_id + report_id
    shares = []
    for role, (key, plaintext) in enumerate(zip(bundle.keys, both, strict=True)):
        sealed = seal(key, plaintext, bound + u64(bucket) + bytes([role, key["key_id"]]))
        shares.append(message((1, key["key_id"]), (2, sealed)))
    parts = [(1, bundle.task_id), (2, report_id), (3, bucket), (4, shares[0]), (5, shares[1])]
    return message(*parts, *([(6, answered)] if answered else []))


def main() -> None:
    encoded = Path(sys.argv[1]).read_bytes()
    now = float(sys.argv[4]) if len(sys.argv) > 4 else time.time()
    bundle = open_bundle(encoded, sys.argv[2:4], now)
    for line in sys.stdin:
        print(base64.b64encode(report(bundle, json.loads(line), now)).decode())


if __name__ == "__main__":
    main()
