"""How a worker on another machine joins a helper, and what the two say to each other afterwards.

    challenge = gate.challenge()                       # the head, to each worker anew
    application = applicant.apply(challenge)           # the worker: a fresh key, and proof of the token
    session, welcome = gate.admit(challenge, application)
    session = applicant.welcomed(challenge, welcome)   # from now on all that passes is sealed

Operators mount one join token at the head and at every worker. What carries the messages is trusted with
nothing: it sees public keys, HMACs and ciphertext, and without the token it can be neither side.
"""

import hmac
import os
from pathlib import Path
from typing import Annotated, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from pydantic import Field

from helper.gradient.exact.self_check import NUMERICS_DIGEST
from maskedlark.canonical import Bytes32, canonical, decode, digest, encode
from maskedlark.errors import InvalidTask, ReportRejected
from maskedlark.frozen import frozen
from maskedlark.hmac_sha256 import hmac_sha256
from maskedlark.never_pickled import NeverPickled
from maskedlark.randomness import Randomness, derive_key, system_randomness
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.sealing import HpkeKey, OpeningKey, SealingKey
from maskedlark.runtime.ownership import check_own, check_secret_file

MIN_TOKEN_BYTES: Final = 32
NONCE_BYTES: Final = 12
_FORMAT: Final = b"orders 8"
_SUITE: Final = HpkeSuite.X25519_CHACHA20POLY1305
_INFO: Final = b"maskedlark/v1 cluster session\0"
_PROOF: Final = b"maskedlark/v1 cluster join\0"

SOFTWARE: Final = digest("cluster software", NUMERICS_DIGEST, _FORMAT)
"""What head and workers must have in common: the numerics of the exact path, and how orders are written."""


class JoinRefused(Exception):
    """A worker does not join: it has another token, other software, or did not answer this challenge."""


class NotSealed(Exception):
    """A message is not the other side's, was altered, or answers something else."""


class JoinToken(NeverPickled):
    """The secret of one helper and its workers."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_TOKEN_BYTES:
            raise InvalidTask(f"a join token has at least {MIN_TOKEN_BYTES} bytes: openssl rand -hex 32")
        self._secret = derive_key(digest("cluster token", secret), b"cluster join token")

    @classmethod
    def read(cls, path: Path) -> "JoinToken":
        """Read the token of a file that nobody else may read.

        Raises:
            InvalidTask: it cannot be read, others may read it, or it is too short.
        """
        try:
            secret = path.read_bytes().strip()
        except OSError as error:
            raise InvalidTask(f"cannot read the join token {path}: {error.strerror}") from None
        check_secret_file(path)
        check_own(path)
        return cls(secret)

    def proof(self, challenge: bytes, public_key: bytes, software: bytes) -> bytes:
        """Return the answer to a challenge that only holders of the token can compute."""
        return hmac_sha256(self._secret, _PROOF + challenge + public_key + software)

    def session(self, secret: bytes, challenge: bytes, public_key: bytes, *, is_head: bool) -> "Session":
        """Derive the two keys of a session from the secret that both sides share."""
        root = derive_key(self._secret, b"cluster session", secret + challenge + public_key)
        keys = derive_key(root, b"to the worker"), derive_key(root, b"to the head")
        return Session(*(keys if is_head else keys[::-1]))

    def __repr__(self) -> str:
        return "JoinToken(<redacted>)"


class Session(NeverPickled):
    """Seals what goes to the other side, and opens what comes. Safe to call from many threads."""

    __slots__ = ("_incoming", "_outgoing")

    def __init__(self, outgoing: bytes, incoming: bytes) -> None:
        self._outgoing, self._incoming = ChaCha20Poly1305(outgoing), ChaCha20Poly1305(incoming)

    def seal(self, message: bytes, about: bytes) -> bytes:
        """Seal a message, bound to its context; no two are alike."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._outgoing.encrypt(nonce, message, about)

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Decrypt a message of the other side.

        Raises:
            NotSealed
        """
        try:
            return self._incoming.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
        except (InvalidTag, ValueError):
            raise NotSealed from None

    def __repr__(self) -> str:
        return "Session(<redacted>)"


@canonical
class Application:
    """What a worker answers to a challenge."""

    public_key: Bytes32
    software: Bytes32
    proof: Bytes32


@canonical
class _Welcome:
    sealed_secret: Annotated[bytes, Field(max_length=256)]


class HandshakeClient(NeverPickled):
    """A worker's side, with a key that lives as long as its process."""

    __slots__ = ("_key", "_software", "_token")

    def __init__(self, token: JoinToken, software: bytes = SOFTWARE) -> None:
        self._token, self._software = token, software
        self._key = OpeningKey.generate(key_id=0, suite=_SUITE)

    def apply(self, challenge: bytes) -> bytes:
        """Return the encoded application."""
        public = self._key.public().public_key
        proof = self._token.proof(challenge, public, self._software)
        return encode(Application(public_key=public, software=self._software, proof=proof))

    def finish(self, challenge: bytes, welcome: bytes) -> Session:
        """Return the session with the head that sent the challenge.

        Raises:
            JoinRefused: the welcome is to another worker.
        """
        try:
            secret = self._key.open(decode(_Welcome, welcome).sealed_secret, _INFO + challenge)
        except (InvalidTask, ReportRejected):
            raise JoinRefused("the head's welcome is to another worker") from None
        return self._token.session(secret, challenge, self._key.public().public_key, is_head=False)


@frozen
class Admitted:
    """A worker that joined: the head's end of the session, and what the worker needs to have the other."""

    session: Session
    welcome: bytes


class HandshakeServer(NeverPickled):
    """The head's side: admits workers that have its token and its software."""

    __slots__ = ("_randomness", "_token")

    def __init__(self, token: JoinToken, randomness: Randomness = system_randomness) -> None:
        self._token, self._randomness = token, randomness

    def challenge(self) -> bytes:
        """Return 32 bytes that were never sent before."""
        return self._randomness(32)

    def admit(self, challenge: bytes, application: bytes) -> Admitted:
        """Open a session with the worker that answered a challenge.

        Raises:
            JoinRefused: it does not have the token, or computes with other numerics.
        """
        try:
            asked = decode(Application, application)
            proof = self._token.proof(challenge, asked.public_key, asked.software)
            if not hmac.compare_digest(proof, asked.proof):
                raise JoinRefused("a worker has not the join token")
            if asked.software != SOFTWARE:
                raise JoinRefused("a worker has other numerics, or another version of this software")
            secret = self._randomness(32)
            key = SealingKey(HpkeKey(key_id=0, suite=_SUITE, public_key=asked.public_key))
            sealed = key.seal(secret, _INFO + challenge)
        except InvalidTask:
            raise JoinRefused("a worker's application cannot be read") from None
        return Admitted(
            session=self._token.session(secret, challenge, asked.public_key, is_head=True),
            welcome=encode(_Welcome(sealed_secret=sealed)),
        )
