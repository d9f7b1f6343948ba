"""The names of the HPKE suites, without cryptography: command lines import them."""

from enum import StrEnum, unique


@unique
class HpkeSuite(StrEnum):
    """The HPKE suites of this protocol: the key encapsulation and the cipher; the KDF is HKDF-SHA256."""

    X25519_AES128GCM = "x25519-aes128gcm"
    X25519_CHACHA20POLY1305 = "x25519-chacha20poly1305"
    MLKEM768_X25519_AES128GCM = "mlkem768-x25519-aes128gcm"
    MLKEM768_X25519_CHACHA20POLY1305 = "mlkem768-x25519-chacha20poly1305"

    @property
    def is_hybrid(self) -> bool:
        """True if the key encapsulation is the post-quantum hybrid."""
        return self.value.startswith("mlkem768")

    @property
    def overhead(self) -> int:
        """The bytes that sealing adds to a plaintext: the encapsulated key, and the cipher's tag."""
        return (1120 if self.is_hybrid else 32) + 16
