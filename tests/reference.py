"""The whole protocol, slow and obvious: every party in one function, Python integers only.

The oracle of the services.

Written from the paper (sections 3.1, 4.1, 4.2) and the specification (docs/spec), not from the code: of the
product it imports nothing. It uses the standard library, and `cryptography` for X25519, AES,
ChaCha20-Poly1305 and HPKE. Noise is left out, so its result is exact.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from tests import reference_proof

P = 2**64 - 2**32 + 1
HPKE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)

Vector = list[int]
Function = Callable[[bytes, int], Vector]
"""f: the clipped, fixed-point integer vector of one (features, label)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Helper:
    """One helper's keys."""

    agreement: X25519PrivateKey
    hpke: X25519PrivateKey
    key_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is public: of the task, of the job and of the round."""

    task_id: bytes
    num_features: int
    labels: Sequence[int]
    default_label: int | None
    num_decoys: int
    time_bucket: int
    min_batch_size: int
    job_digest: bytes
    sampling_numerator: int
    round_index: int
    weights: bytes
    numerics: bytes
    is_proven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSetting:
    """What is public of a round of federated training; `spec` is what the ad server asks both helpers for,
    canonical."""

    task_id: bytes
    round_id: bytes
    spec: bytes
    time_bucket: int
    length: int
    min_batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedReport:
    """What the ad server stores."""

    report_id: bytes
    ciphertexts: tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run of the protocol gives."""

    dataset_id: bytes
    shares: tuple[Vector, Vector]
    total: Vector
    sampled: list[bytes]


def run(
    setting: Setting,
    helpers: tuple[Helper, Helper],
    reports: Sequence[SealedReport],
    f: Function,
    length: int,
) -> Outcome:
    """From stored reports to the sum: steps 5 to 8 of the design."""
    # Step 5. Each helper opens every report and tags what it read; the ad server sees that the tags are
    # equal. The dataset is all reports, in order of their ids; its id names the reports and what both helpers
    # read of them.
    in_order = sorted(reports, key=lambda report: report.report_id)
    ids = [report.report_id for report in in_order]
    pair_keys = [pair_key(setting, helpers, role) for role in (0, 1)]
    tags = [
        [view_tag(setting, role, helpers[role], pair_keys[role], report) for report in in_order]
        for role in (0, 1)
    ]
    assert tags[0] == tags[1]
    dataset_id = framed_hash("dataset", setting.task_id, b"".join(ids), b"".join(tags[0]))

    # Steps 6 and 7. Each helper by itself: what follows uses one helper's keys and the other's public key.
    transcript = framed_hash(
        "round",
        setting.job_digest,
        setting.round_index.to_bytes(8, "little"),
        setting.weights,
        setting.numerics,
    )
    shares: list[Vector] = []
    sampled: list[bytes] = []
    for role in (0, 1):
        # The minibatch: a 32-bit word for each record, in order; a record is in if its word is below the
        # numerator.
        words = stream(hkdf(pair_keys[role], b"sample", transcript), 4 * len(ids))
        chosen = [
            report
            for i, report in enumerate(in_order)
            if int.from_bytes(words[4 * i : 4 * i + 4], "little") < setting.sampling_numerator
        ]
        if len(chosen) < setting.min_batch_size:
            chosen = []
        sampled = [report.report_id for report in chosen]

        # The masked sum, in the field: for each record and each candidate label, mask share times f.
        total = [0] * length
        for report in chosen:
            features, labels, masks = open_report(setting, role, helpers[role], report)
            for label, mask in zip(labels, masks, strict=True):
                value = f(features, label)
                total = [(t + mask * v) % P for t, v in zip(total, value, strict=True)]

        # The blind: helper 0 adds it, helper 1 subtracts it.
        blind = field_elements(hkdf(pair_keys[role], b"blind", transcript), length)
        sign = 1 if role == 0 else -1
        shares.append([(t + sign * b) % P for t, b in zip(total, blind, strict=True)])

    # Step 8. The ad server adds the two shares and reads the result as signed integers.
    summed = [(a + b) % P for a, b in zip(*shares, strict=True)]
    signed = [value if value <= P // 2 else value - P for value in summed]
    return Outcome(dataset_id=dataset_id, shares=(shares[0], shares[1]), total=signed, sampled=sampled)


def make_report(
    setting: Setting, helpers: tuple[Helper, Helper], features: bytes, label: int | None, random: Random
) -> SealedReport:
    """The browser, steps 2 and 3. A label of None makes a fake report."""
    # Candidate labels: the real one, the default, and decoys drawn from the rest; in random order.
    candidates = [] if label is None else [label]
    if setting.default_label is not None and setting.default_label not in candidates:
        candidates.append(setting.default_label)
    rest = [other for other in setting.labels if other not in candidates]
    candidates += random.sample(rest, setting.num_decoys + 1 - len(candidates))
    random.shuffle(candidates)

    report_id, nonce = random.randbytes(16), random.randbytes(16)
    view = nonce + features + b"".join(candidate.to_bytes(4, "little") for candidate in candidates)
    if setting.is_proven:
        mask = [int(candidate == label) for candidate in candidates]
        return seal(
            setting, helpers, report_id, proven_plaintexts(setting, report_id, b"\x02" + view, mask, random)
        )

    # Mask shares: they add to 1 for the real label and to 0 for a decoy.
    masks_0 = [random.randrange(P) for _ in candidates]
    masks_1 = [
        ((1 if candidate == label else 0) - mask) % P
        for candidate, mask in zip(candidates, masks_0, strict=True)
    ]

    plaintexts = [b"\x01" + view + reference_proof.words(masks) for masks in (masks_0, masks_1)]
    return seal(setting, helpers, report_id, plaintexts)


def proven_plaintexts(
    setting: Setting, report_id: bytes, view: bytes, mask: Vector, random: Random
) -> list[bytes]:
    """The browser's two plaintexts with a proof that the mask is all zeros or a single 1."""
    secret = reference_proof.prepare([mask], [], [[random.randrange(P) for _ in range(3)]], [])
    seed, blinds = random.randbytes(32), [random.randbytes(32), random.randbytes(32)]
    shares = [expanded(setting, report_id, seed, len(secret.flat()))]
    shares.append([(whole - part) % P for whole, part in zip(secret.flat(), shares[0], strict=True)])
    commitments = [
        reference_proof.commitment(
            setting.task_id, report_id, role=role, blind=blinds[role], view=view, share=shares[role]
        )
        for role in (0, 1)
    ]
    opened = reference_proof.openings(secret, reference_proof.points_of(commitments)[1])
    told = [seed, reference_proof.words(shares[1])]
    return [
        view + reference_proof.words(opened) + commitments[1 - role] + blinds[role] + told[role]
        for role in (0, 1)
    ]


def seal(
    setting: Setting, helpers: tuple[Helper, Helper], report_id: bytes, plaintexts: Sequence[bytes]
) -> SealedReport:
    """Each plaintext to its helper."""
    first, second = (
        HPKE.encrypt(plaintext, helper.hpke.public_key(), binding(setting, report_id, role, helper.key_id))
        for role, (helper, plaintext) in enumerate(zip(helpers, plaintexts, strict=True))
    )
    return SealedReport(report_id=report_id, ciphertexts=(first, second))


def expanded(setting: Setting, report_id: bytes, seed: bytes, length: int) -> Vector:
    """Role 0's share, of its seed."""
    return field_elements(hkdf_expand(seed, b"share", setting.task_id + report_id + b"\x00"), length)


def open_report(
    setting: Setting, role: int, helper: Helper, report: SealedReport
) -> tuple[bytes, list[int], list[int]]:
    """One helper opens its share: features, candidate labels, mask shares."""
    view, behind = opened_parts(setting, role, helper, report)
    d, count = setting.num_features, setting.num_decoys + 1
    labels = [int.from_bytes(view[17 + d + 4 * i : 21 + d + 4 * i], "little") for i in range(count)]
    return view[17 : 17 + d], labels, secret_share(setting, role, report.report_id, behind)[:count]


def opened_parts(setting: Setting, role: int, helper: Helper, report: SealedReport) -> tuple[bytes, bytes]:
    """The view, and what stands behind it: mask shares, or openings, commitment, blind and proof share."""
    plaintext = HPKE.decrypt(
        report.ciphertexts[role], helper.hpke, binding(setting, report.report_id, role, helper.key_id)
    )
    count = setting.num_decoys + 1
    end = 17 + setting.num_features + 4 * count
    assert plaintext[0] == (2 if setting.is_proven else 1)
    if setting.is_proven:
        assert len(plaintext) == end + 24 + 64 + (32 if role == 0 else 8 * (count + 6))
    else:
        assert len(plaintext) == end + 8 * count
    return plaintext[:end], plaintext[end:]


def secret_share(setting: Setting, role: int, report_id: bytes, behind: bytes) -> Vector:
    """A role's share: the masks, and in a proven report rho and its square."""
    if setting.is_proven and role == 0:
        return expanded(setting, report_id, behind[88:], setting.num_decoys + 7)
    share = behind[88:] if setting.is_proven else behind
    return [int.from_bytes(share[at : at + 8], "little") for at in range(0, len(share), 8)]


def run_updates(
    setting: UpdateSetting, helpers: tuple[Helper, Helper], reports: Sequence[SealedReport]
) -> Vector:
    """Federated training: from stored update reports to the sum of what devices sent, noise left out. Steps
    5 to 8 of the design."""
    secrets = []
    for role in (0, 1):
        theirs = helpers[1 - role].agreement.public_key().public_bytes_raw()
        secrets.append(
            hkdf(
                helpers[role].agreement.exchange(X25519PublicKey.from_public_bytes(theirs)),
                b"pair",
                setting.task_id,
            )
        )
    assert secrets[0] == secrets[1]
    transcript = framed_hash("update", setting.spec)
    shares: list[Vector] = []
    for role in (0, 1):
        total = [0] * setting.length
        for report in reports:
            info = update_binding(setting, report.report_id, role, helpers[role].key_id)
            plaintext = HPKE.decrypt(report.ciphertexts[role], helpers[role].hpke, info)
            assert plaintext[0] == 1
            payload = plaintext[17:]
            if role == 0:  # a seed, which expands
                assert len(payload) == 32
                vector = field_elements(
                    hkdf_expand(payload, b"share", setting.task_id + report.report_id + b"\x00"),
                    setting.length,
                )
            else:
                vector = [int.from_bytes(payload[8 * i : 8 * i + 8], "little") for i in range(setting.length)]
            total = [(t + v) % P for t, v in zip(total, vector, strict=True)]
        if len(reports) < setting.min_batch_size:
            total = [0] * setting.length
        blind = field_elements(hkdf(secrets[role], b"blind", transcript), setting.length)
        sign = 1 if role == 0 else -1
        shares.append([(t + sign * b) % P for t, b in zip(total, blind, strict=True)])
    summed = [(a + b) % P for a, b in zip(*shares, strict=True)]
    return [value if value <= P // 2 else value - P for value in summed]


def make_update(
    setting: UpdateSetting, helpers: tuple[Helper, Helper], vector: Vector, random: Random
) -> SealedReport:
    """The device: a seed for helper 0, and for helper 1 the vector less what the seed expands to."""
    report_id, nonce, seed = random.randbytes(16), random.randbytes(16), random.randbytes(32)
    expanded = field_elements(hkdf_expand(seed, b"share", setting.task_id + report_id + b"\x00"), len(vector))
    other = b"".join(
        ((value - mask) % P).to_bytes(8, "little") for value, mask in zip(vector, expanded, strict=True)
    )
    ciphertexts = []
    for role, payload in enumerate((seed, other)):
        info = update_binding(setting, report_id, role, helpers[role].key_id)
        ciphertexts.append(HPKE.encrypt(b"\x01" + nonce + payload, helpers[role].hpke.public_key(), info))
    return SealedReport(report_id=report_id, ciphertexts=(ciphertexts[0], ciphertexts[1]))


def update_binding(setting: UpdateSetting, report_id: bytes, role: int, key_id: int) -> bytes:
    """What an update share is sealed with: it opens for this task, round, report, time bucket, helper role
    and key only."""
    return (
        b"maskedlark/v1 update share\x00"
        + setting.task_id
        + setting.round_id
        + report_id
        + setting.time_bucket.to_bytes(8, "little")
        + bytes([role, key_id])
    )


def pair_key(setting: Setting, helpers: tuple[Helper, Helper], role: int) -> bytes:
    """The key that only the helpers share, from one's private key and the other's public key."""
    theirs = helpers[1 - role].agreement.public_key().public_bytes_raw()
    return hkdf(
        helpers[role].agreement.exchange(X25519PublicKey.from_public_bytes(theirs)), b"pair", setting.task_id
    )


def view_tag(setting: Setting, role: int, helper: Helper, key: bytes, report: SealedReport) -> bytes:
    """What a helper says of its view of a report, and of the proof: 16 bytes that nobody else can read."""
    view, behind = opened_parts(setting, role, helper, report)
    covered = report.report_id + view
    if setting.is_proven:
        flat = secret_share(setting, role, report.report_id, behind)
        count = setting.num_decoys + 1
        share = reference_proof.Secret(
            vectors=[flat[:count]], bits=[], rho=[flat[count : count + 3]], square=[flat[count + 3 :]],
            phi=[], quotient=[],
        )  # fmt: skip
        own = reference_proof.commitment(
            setting.task_id, report.report_id, role=role, blind=behind[56:88], view=view, share=flat
        )
        other = behind[24:56]
        seed, points = reference_proof.points_of([own, other] if role == 0 else [other, own])
        opened = [int.from_bytes(behind[at : at + 8], "little") for at in (0, 8, 16)]
        covered += seed + behind[:24]
        covered += reference_proof.words(reference_proof.residues(role, share, opened, points))
    return hmac.digest(hkdf(key, b"view", b""), covered, "sha256")[:16]


def binding(setting: Setting, report_id: bytes, role: int, key_id: int) -> bytes:
    """What a share is sealed with: it opens for this task, report, time bucket, helper role and key only."""
    return (
        b"maskedlark/v1 input share\x00"
        + setting.task_id
        + report_id
        + setting.time_bucket.to_bytes(8, "little")
        + bytes([role, key_id])
    )


def framed_hash(purpose: str, *parts: bytes) -> bytes:
    """SHA-256 of a purpose and length-prefixed parts."""
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hashlib.sha256(b"maskedlark/v1 " + purpose.encode() + framed).digest()


def hkdf(secret: bytes, purpose: bytes, context: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) without salt, 32 bytes out, by its definition."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, b"maskedlark/v1 " + purpose + b"\x00" + context + b"\x01", "sha256")


def hkdf_expand(secret: bytes, purpose: bytes, context: bytes) -> bytes:
    """HKDF-Expand (RFC 5869) of a uniform secret, 32 bytes out, by its definition."""
    return hmac.digest(secret, b"maskedlark/v1 " + purpose + b"\x00" + context + b"\x01", "sha256")


def stream(key: bytes, count: int) -> bytes:
    """The first bytes of AES-256 in counter mode from a zero counter block."""
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(count))


def field_elements(key: bytes, count: int) -> Vector:
    """Little-endian 8-byte words of the key's stream, those at or above p skipped."""
    words = stream(key, 8 * count + 64)
    elements = [int.from_bytes(words[i : i + 8], "little") for i in range(0, len(words), 8)]
    return [element for element in elements if element < P][:count]


def correlated_noise(
    carried: int,
    scale: int,
    gaussian: Callable[[bytes, int], Vector],
    *,
    kept: bytes,
    own: bytes,
    before: bytes | None,
) -> Vector:
    """One helper's noise of one step, of which the next one takes `carried` 64ths out again.

    `gaussian` draws discrete Gaussians of a scale from the AES stream of a key. The step keeps 64 u + v.
    """
    each = (scale + 63) // 64
    noise = [64 * u + v for u, v in zip(gaussian(kept, each), gaussian(own, 512), strict=True)]
    if before is not None:
        noise = [n - carried * u for n, u in zip(noise, gaussian(before, each), strict=True)]
    return noise


def opened_seed(storage_key: bytes, job_digest: bytes, round_index: int, sealed: bytes) -> bytes:
    """The random seed of a round's correlated noise, as a helper's ledger keeps it beside the answer."""
    cipher = ChaCha20Poly1305(hkdf(storage_key, b"correlated noise", job_digest))
    return cipher.decrypt(sealed[:12], sealed[12:], round_index.to_bytes(8, "little"))


def correlated_key(seed: bytes, purpose: bytes) -> bytes:
    """The key of one stream of a round's correlated noise; `purpose` is kept or own."""
    return hkdf(seed, b"step noise " + purpose, b"")
