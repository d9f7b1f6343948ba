"""Secret files that only the holder of another key can read: envelope encryption by one small interface.

A secret file is plaintext (the default), or an envelope: sealed with a data key that a keeper has wrapped
with the keeper's key. The keeper is an HSM or another PKCS#11 token, or a program that calls a cloud's KMS.
Whoever copies the disk or its backup has nothing then; whoever reads the process's memory has the secrets.

    wrap_file(folder / "keys.json", "pkcs11:token=lark;object=kek")    # once, by the operator
    read_secret(folder / "keys.json")                                  # plaintext, from either form

Which keeper wrapped a file is named in it; where its module or program lies, and the PIN, are not: they come
from the environment, so that a file says nothing about what is run.
"""

import json
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from maskedlark.errors import InvalidSetting
from maskedlark.runtime.durable_file import replacing
from maskedlark.runtime.ownership import check_program, check_secret_file, keep_owner

PLAIN: Final = "file"
COMMAND: Final = "command"
MODULE_VARIABLE: Final = "MASKEDLARK_PKCS11_MODULE"
PIN_VARIABLE: Final = "MASKEDLARK_PKCS11_PIN_FILE"
COMMAND_VARIABLE: Final = "MASKEDLARK_KEY_COMMAND"
_FORMAT: Final = "maskedlark-envelope-1"
_FIELDS: Final = {"format", "keeper", "data_key", "nonce", "ciphertext"}
_PKCS11: Final = re.compile(r"pkcs11:token=([\w .-]{1,32});object=([\w .-]{1,64})")
_DATA_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BITS: Final = 128
_MOST_BYTES: Final = 1 << 20
_ANSWERS_WITHIN_S: Final = 30.0
# A server looks at its files with each call: a keeper that is away must not hold up all of them
_AGAIN_AFTER_S: Final = 300.0
# Of a party: the keys and the TLS key in use, and the ones before or after them
_MOST_REMEMBERED: Final = 4
_LABEL: Final = b"maskedlark data key"


class _KeyKeeper(Protocol):
    """Wraps data keys with a key that never leaves it."""

    def wrap(self, data_key: bytes) -> bytes:
        """Return a data key that this keeper alone can unwrap."""

    def unwrap(self, wrapped: bytes) -> bytes:
        """Return the data key."""


def read_secret(path: Path) -> bytes:
    """Return the content of a secret file, of an envelope what is in it.

    Raises:
        InvalidSetting: it is an envelope, and its keeper is not configured, away, or does not open it; or it
            was changed.
        OSError: the file cannot be read.
    """
    content = path.read_bytes()
    envelope = _decode(path, content)
    if envelope is None:
        return content
    try:
        data_key = _unwrap_or_refuse(envelope["keeper"], bytes.fromhex(envelope["data_key"]))
        sealed = bytes.fromhex(envelope["ciphertext"])
        return AESGCM(data_key).decrypt(
            bytes.fromhex(envelope["nonce"]), sealed, _context(envelope["keeper"])
        )
    except (InvalidTag, ValueError):
        raise InvalidSetting(f"{path} is damaged, or of another key of {envelope['keeper']}") from None


def keeper_of(path: Path) -> str:
    """Return what a secret file is wrapped by: `file` for a plain one.

    Raises:
        InvalidSetting: the file cannot be read, or is a damaged envelope.
    """
    try:
        envelope = _decode(path, path.read_bytes())
    except OSError as error:
        raise InvalidSetting(f"cannot read {path}: {error.strerror}") from None
    return PLAIN if envelope is None else envelope["keeper"]


def seal_by(keeper: str, content: bytes) -> bytes:
    """Return what to write of a secret, in the form that a keeper's name asks for.

    Raises:
        InvalidSetting: the name is unknown, or the keeper is not configured or away.
    """
    if keeper == PLAIN:
        return content
    data_key, nonce = secrets.token_bytes(_DATA_KEY_BYTES), secrets.token_bytes(_NONCE_BYTES)
    wrapped = _keeper(keeper).wrap(data_key)
    # A keeper that cannot unwrap what it wrapped would lose the secret for good.
    if _unwrap_once(keeper, wrapped) != data_key:
        raise InvalidSetting(f"{keeper} does not give back what it wrapped: nothing was written")
    envelope = {
        "format": _FORMAT,
        "keeper": keeper,
        "data_key": wrapped.hex(),
        "nonce": nonce.hex(),
        "ciphertext": AESGCM(data_key).encrypt(nonce, content, _context(keeper)).hex(),
    }
    return json.dumps(envelope, indent=1).encode() + b"\n"


def wrap_file(path: Path, keeper: str) -> None:
    """Put a secret file into the form that a keeper's name asks for, in one step. Called by the operator.

    Raises:
        InvalidSetting: the file cannot be read or others may read it; see `seal_by`.
    """
    check_secret_file(path)
    try:
        content = seal_by(keeper, read_secret(path))
        with replacing(path, path.with_name(f"{path.name}.unfinished")) as stream:
            keep_owner(stream.fileno(), path)
            stream.write(content)
    except OSError as error:
        raise InvalidSetting(f"cannot wrap {path}: {error.strerror}") from None


def _decode(path: Path, content: bytes) -> Mapping[str, str] | None:
    """Return an envelope's fields, or None for a plain secret."""
    if _FORMAT.encode() not in content[: len(_FORMAT) + 64]:
        return None
    try:
        found: Any = json.loads(content) if len(content) <= _MOST_BYTES else None
    except ValueError:
        found = None
    if (
        not isinstance(found, dict)
        or found.keys() != _FIELDS
        or not all(isinstance(one, str) for one in found.values())
    ):
        raise InvalidSetting(f"{path} is damaged: restore it from a backup")
    return found


def _context(keeper: str) -> bytes:
    # Authenticated with the secret: an envelope cannot be made to name another keeper.
    return f"{_FORMAT} {keeper}".encode()


_refused: Final[dict[tuple[str, bytes], tuple[float, str]]] = {}


def _unwrap_or_refuse(keeper: str, wrapped: bytes) -> bytes:
    """Return a data key; a keeper that refused it is not asked for it again for a while."""
    until, why = _refused.get((keeper, wrapped), (0.0, ""))
    if monotonic() < until:
        raise InvalidSetting(why)
    try:
        return _unwrap_once(keeper, wrapped)
    except InvalidSetting as refused:
        if len(_refused) >= _MOST_REMEMBERED:
            _refused.clear()
        _refused[keeper, wrapped] = (monotonic() + _AGAIN_AFTER_S, str(refused))
        raise


@lru_cache(maxsize=_MOST_REMEMBERED)
def _unwrap_once(keeper: str, wrapped: bytes) -> bytes:
    """Return a data key; each is asked for once by a process, which holds the secrets anyway."""
    data_key = _keeper(keeper).unwrap(wrapped)
    if len(data_key) != _DATA_KEY_BYTES:
        raise InvalidSetting(f"{keeper} answered with {len(data_key)} bytes, expected {_DATA_KEY_BYTES}")
    return data_key


def _keeper(name: str) -> _KeyKeeper:
    """Return the keeper of a name.

    Raises:
        InvalidSetting: the name is unknown, or what it needs is not configured.
    """
    if name == COMMAND:
        return _Command(_read_path(COMMAND_VARIABLE, "the program that calls the KMS"))
    matched = _PKCS11.fullmatch(name)
    if matched is None:
        raise InvalidSetting(
            f"{name!r} keeps no keys: expected file, command, or pkcs11:token=LABEL;object=LABEL"
        )
    return _Token(*matched.groups())


def _read_path(variable: str, what: str) -> Path:
    """Return the path that a variable names."""
    found = os.environ.get(variable)
    if not found:
        raise InvalidSetting(
            f"the variable {variable} is not set, so keys can be neither wrapped nor read: "
            f"export {variable}=/PATH/TO/FILE, {what}"
        )
    path = Path(found)
    if not path.is_file():
        raise InvalidSetting(f"{variable} is {found}, and no file is there: expected the path of {what}")
    return path


class _Command:
    """A program, called with `wrap` or `unwrap`, that reads a key and writes its other form."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def wrap(self, data_key: bytes) -> bytes:
        return self._run("wrap", data_key)

    def unwrap(self, wrapped: bytes) -> bytes:
        return self._run("unwrap", wrapped)

    def _run(self, act: str, given: bytes) -> bytes:
        check_program(self._program)
        try:
            done = subprocess.run(  # noqa: S603  the operator's own program, which nobody else may replace
                [self._program, act], input=given, capture_output=True, timeout=_ANSWERS_WITHIN_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise InvalidSetting(
                f"{self._program} {act} did not end within {_ANSWERS_WITHIN_S:.0f} s: run it as this user to "
                "see why"
            ) from None
        except OSError as error:
            raise InvalidSetting(
                f"cannot run {self._program} {act} ({COMMAND_VARIABLE}): {error.strerror}; expected a "
                "program that this user may run"
            ) from None
        if done.returncode or not done.stdout:
            raise InvalidSetting(
                f"{self._program} {act} ended with status {done.returncode} and {len(done.stdout)} bytes: "
                "run it as this user to see why"
            )
        return done.stdout


class _Token:
    """A secret key in a PKCS#11 token, by the labels of both."""

    def __init__(self, token: str, label: str) -> None:
        self._token = token
        self._label = label

    def wrap(self, data_key: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._with_key(lambda key, how: bytes(key.encrypt(data_key, **how(nonce))))

    def unwrap(self, wrapped: bytes) -> bytes:
        nonce, sealed = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        return self._with_key(lambda key, how: bytes(key.decrypt(sealed, **how(nonce))))

    def _with_key(self, use: Callable[[Any, Callable[[bytes], dict[str, Any]]], bytes]) -> bytes:
        try:
            import pkcs11
        except ImportError:
            raise InvalidSetting(
                "a PKCS#11 token needs a library that is missing: pip install 'masked-lark[pkcs11]'"
            ) from None
        module = _read_path(MODULE_VARIABLE, "the token's PKCS#11 library")
        pin_file = _read_path(PIN_VARIABLE, "the file of the token's PIN")
        check_program(module)
        check_secret_file(pin_file)

        def how(nonce: bytes) -> dict[str, Any]:
            parameters = pkcs11.GCMParams(nonce, _LABEL, _TAG_BITS)
            return {"mechanism": pkcs11.Mechanism.AES_GCM, "mechanism_param": parameters}

        try:
            token = pkcs11.lib(str(module)).get_token(token_label=self._token)
            with token.open(user_pin=pin_file.read_text().strip()) as session:
                kind = pkcs11.ObjectClass.SECRET_KEY
                return use(session.get_key(object_class=kind, label=self._label), how)
        except (pkcs11.PKCS11Error, RuntimeError, OSError) as error:
            reason = type(error).__name__
            raise InvalidSetting(
                f"the token {self._token!r} does not use its key {self._label!r} ({reason}): see that "
                f"{MODULE_VARIABLE} names the token's own library, that token and key have these labels, and "
                f"that the PIN in {PIN_VARIABLE} is right"
            ) from None
