"""Opening follows RFC 9180: whatever `cryptography` seals opens, and nothing else does."""

import os

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.reports.hpke_opening import Cipher, HpkeOpening

SUITES = {
    Cipher.AES_128_GCM: Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM),
    Cipher.CHACHA20_POLY1305: Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305),
}
PRIVATE = X25519PrivateKey.from_private_bytes(bytes(range(32)))
INFO = bytes.fromhex("4f6465206f6e2061204772656369616e2055726e")


def opens(ciphertext: bytes, info: bytes, cipher: Cipher = Cipher.AES_128_GCM) -> bytes:
    return HpkeOpening(PRIVATE, cipher).open(ciphertext, info)


@given(plaintext=st.binary(max_size=2000), info=st.binary(max_size=300), cipher=st.sampled_from(Cipher))
def test_what_cryptography_seals_opens(plaintext: bytes, info: bytes, cipher: Cipher) -> None:
    sealed = SUITES[cipher].encrypt(plaintext, PRIVATE.public_key(), info)
    assert opens(sealed, info, cipher) == plaintext


def test_a_key_opens_again_and_again() -> None:
    opening = HpkeOpening(PRIVATE, Cipher.AES_128_GCM)
    for number in range(50):
        info = os.urandom(number)
        sealed = SUITES[Cipher.AES_128_GCM].encrypt(b"%d" % number, PRIVATE.public_key(), info)
        assert opening.open(sealed, info) == b"%d" % number


@given(place=st.integers(0, 32 + 20 + 16 - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_does_not_open(place: int, bit: int) -> None:
    sealed = bytearray(SUITES[Cipher.AES_128_GCM].encrypt(bytes(20), PRIVATE.public_key(), INFO))
    if (place, bit) == (31, 7):
        return  # X25519 ignores this bit of a public key (RFC 7748, section 5); the next test is about it
    sealed[place] ^= 1 << bit
    with pytest.raises((InvalidTag, ValueError)):
        opens(bytes(sealed), INFO)


def test_the_bit_that_x25519_ignores_is_bound_all_the_same() -> None:
    sealed = bytearray(SUITES[Cipher.AES_128_GCM].encrypt(b"x", PRIVATE.public_key(), INFO))
    sealed[31] ^= 0x80
    with pytest.raises(InvalidTag):
        opens(bytes(sealed), INFO)


def test_other_info_another_key_or_another_cipher_do_not_open() -> None:
    sealed = SUITES[Cipher.AES_128_GCM].encrypt(b"x", PRIVATE.public_key(), INFO)
    with pytest.raises(InvalidTag):
        opens(sealed, INFO + b"\0")
    with pytest.raises(InvalidTag):
        HpkeOpening(X25519PrivateKey.generate(), Cipher.AES_128_GCM).open(sealed, INFO)
    with pytest.raises(InvalidTag):
        opens(sealed, INFO, Cipher.CHACHA20_POLY1305)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 47])
def test_too_short_does_not_open(length: int) -> None:
    with pytest.raises(InvalidTag):
        opens(bytes(length), INFO)


def test_an_encapsulated_key_of_low_order_does_not_open() -> None:
    with pytest.raises(ValueError, match=r"."):
        opens(bytes(100), INFO)


def test_its_repr_shows_no_key() -> None:
    assert repr(HpkeOpening(PRIVATE, Cipher.AES_128_GCM)) == "HpkeOpening(<redacted>)"
