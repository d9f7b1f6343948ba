from typing import Any

import pytest

from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.sealing import HpkeKey, OpeningKey, SealingKey, SignedKeyList, share_info
from tests.builders import FAR, helper_keys
from tests.refusals import refused

CONTEXT: dict[str, Any] = {
    "task_id": bytes(32),
    "report_id": bytes(16),
    "time_bucket": 5,
    "role": 0,
    "key_id": 1,
}


@pytest.mark.parametrize("suite", list(HpkeSuite))
def test_a_sealed_share_opens_under_its_key_and_binding(suite: HpkeSuite) -> None:
    key = OpeningKey.generate(key_id=9, suite=suite)
    sealed = SealingKey(key.public()).seal(b"plaintext", share_info(**CONTEXT))
    assert key.open(sealed, share_info(**CONTEXT)) == b"plaintext"
    assert len(sealed) == len(b"plaintext") + suite.overhead


@pytest.mark.parametrize("suite", list(HpkeSuite))
def test_a_key_survives_its_bytes(suite: HpkeSuite) -> None:
    key = OpeningKey.generate(key_id=9, suite=suite)
    again = OpeningKey(key_id=9, suite=suite, secret=key.secret_bytes())
    assert again.public() == key.public()
    assert again.open(SealingKey(key.public()).seal(b"x", b"info"), b"info") == b"x"


@pytest.mark.parametrize(
    "change",
    [
        {"task_id": b"\1" + bytes(31)},
        {"report_id": b"\1" + bytes(15)},
        {"time_bucket": 6},
        {"role": 1},
        {"key_id": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_share_moved_to_another_binding_does_not_open(change: dict[str, Any]) -> None:
    key = OpeningKey.generate(key_id=1)
    sealed = SealingKey(key.public()).seal(b"plaintext", share_info(**CONTEXT))
    with refused(ReportReason.NOT_OPENED):
        key.open(sealed, share_info(**{**CONTEXT, **change}))


@pytest.mark.parametrize("suite", [HpkeSuite.X25519_AES128GCM, HpkeSuite.MLKEM768_X25519_CHACHA20POLY1305])
def test_tampered_truncated_and_foreign_ciphertexts_do_not_open(suite: HpkeSuite) -> None:
    key, other = OpeningKey.generate(key_id=1, suite=suite), OpeningKey.generate(key_id=1, suite=suite)
    sealed = SealingKey(key.public()).seal(b"plaintext", b"info")
    flipped = [
        sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :]
        for i in (0, 31, len(sealed) // 2, len(sealed) - 1)
    ]
    for bad in [
        *flipped,
        b"",
        sealed[:10],
        sealed[:-1],
        sealed + b"\0",
        SealingKey(other.public()).seal(b"plaintext", b"info"),
    ]:
        with refused(ReportReason.NOT_OPENED):
            key.open(bad, b"info")


def test_secrets_do_not_show_in_a_repr() -> None:
    key = OpeningKey.generate(key_id=3)
    for secret in (key.secret_bytes().hex(), repr(key.secret_bytes())[2:-1]):
        assert secret not in repr(key)
    assert "redacted" in repr(key)


@pytest.mark.parametrize("public_key", [b"", bytes(31), bytes(33), bytes(1216)])
def test_a_public_key_of_the_wrong_size_is_refused(public_key: bytes) -> None:
    with pytest.raises(InvalidTask):
        SealingKey(HpkeKey(key_id=1, suite=HpkeSuite.X25519_AES128GCM, public_key=public_key))


def test_a_key_list_verifies_only_under_the_helper_that_signed_it() -> None:
    ours, theirs = helper_keys(), helper_keys()
    signed = SignedKeyList.sign(ours.signing, (ours.opening.public(),), not_after=FAR)
    assert signed.verify(ours.signing.public_key().public_bytes_raw()) == ours.opening.public()
    with pytest.raises(InvalidTask, match="another helper"):
        signed.verify(theirs.signing.public_key().public_bytes_raw())


def test_a_key_list_with_a_swapped_key_is_refused() -> None:
    ours, theirs = helper_keys(), helper_keys()
    signed = SignedKeyList.sign(ours.signing, (ours.opening.public(),), not_after=FAR)
    forged = type(signed)(
        key_list=type(signed.key_list)(
            verify_key=signed.key_list.verify_key, keys=(theirs.opening.public(),)
        ),
        signature=signed.signature,
    )
    with pytest.raises(InvalidTask, match="signature"):
        forged.verify(signed.key_list.verify_key)


@pytest.mark.parametrize("suite", [HpkeSuite.X25519_AES128GCM, HpkeSuite.MLKEM768_X25519_CHACHA20POLY1305])
def test_sealing_to_a_key_of_low_order_is_refused(suite: HpkeSuite) -> None:
    good = OpeningKey.generate(key_id=1, suite=suite).public()
    weak = HpkeKey(key_id=1, suite=suite, public_key=good.public_key[:-32] + bytes(32))
    with pytest.raises(InvalidTask, match="HPKE key 1"):
        SealingKey(weak).seal(b"plaintext", share_info(**CONTEXT))
