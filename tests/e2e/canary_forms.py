"""The forms in which a secret could get into a log, a trace, a metric, a database or a core file.

As bytes, as text, and as arrays.
"""

import base64
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from maskedlark.numbers.field import from_signed

LEAST_BYTES = 8
"""Of a form: shorter ones would be found by chance."""
_SMALL = 1 << 28


def of_bytes(secret: bytes) -> set[bytes]:
    """A secret string of bytes.

    Raw, in hexadecimal, base64 at whatever place in a longer text, lists of numbers, and Python's own form.
    """
    numbers = [str(byte) for byte in secret]
    written = [
        ", ".join(numbers),
        ",".join(numbers),
        " ".join(number.rjust(3) for number in numbers),
        " ".join(numbers),
    ]
    written += [secret.hex(), secret.hex().upper(), secret.hex(" "), repr(secret)[2:-1], *_base64(secret)]
    # The bytes as an array of wider numbers, and as the floats that a model is shown (a feature byte means
    # byte / 256).
    byte_values = np.frombuffer(secret, np.uint8)
    arrays = [byte_values.astype(kind).tobytes() for kind in ("<u4", ">u4", "<i8", "<f4", ">f4", "<f8")]
    arrays += [(byte_values / 256).astype(kind).tobytes() for kind in ("<f4", ">f4", "<f8", ">f8")]
    return _long({secret, secret[::-1], *arrays, *(form.encode() for form in written)})


def of_numbers(vector: NDArray[np.int64], frac_bits: int) -> set[bytes]:
    """Each large entry of a secret vector of integers in units of 2^-frac_bits.

    As integer, field element and float, binary and text.

    What is smaller than 2^28 is left out: its zero bytes and few digits are found by chance.
    """
    large = vector[np.abs(vector) > _SMALL]
    assert len(large), "nothing to look for"
    forms: set[bytes] = set()
    for value, element in zip(large.tolist(), from_signed(large).tolist(), strict=True):
        for order in ("little", "big"):
            forms |= {value.to_bytes(8, order, signed=True), element.to_bytes(8, order)}
        forms |= {f"{number}".encode() for number in (value, element, abs(value))}
        forms |= {f"{element:016x}".encode(), f"{element:016X}".encode()}
        natural = value / 2**frac_bits
        forms |= {
            repr(natural).encode(),
            np.array(natural, "<f8").tobytes(),
            np.array(natural, ">f8").tobytes(),
        }
    # Floats of four bytes are too short one by one: neighbours, as an array holds them.
    for first in np.flatnonzero((np.abs(vector[:-1]) > _SMALL) & (np.abs(vector[1:]) > _SMALL)):
        forms |= {
            (vector[first : first + 2] / 2.0**frac_bits).astype(kind).tobytes() for kind in ("<f4", ">f4")
        }
    return _long(forms)


def of_neighbours(row: NDArray[np.uint32], width: int) -> set[bytes]:
    """Each two neighbours of one report's row of numbers, as arrays of every kind hold them and as lists,
    JSON and NumPy write them.

    One alone has four bytes and few digits, and would be found by chance. `width`: digits of the longest
    number in the whole array, to which NumPy fills up the others.
    """
    forms = as_held(row)
    for pair in _pairs(row):
        one, other = pair.tolist()
        forms |= {pair.astype(kind).tobytes() for kind in ("<u8", ">u8", "<f4", ">f4", "<f8", ">f8")}
        hexadecimal = [pair.astype(kind).tobytes().hex() for kind in ("<u4", ">u4")]
        integers = [f"{one}{separator}{other}" for separator in (",", " ", ";", "\t")]
        padded = [f"{one}{separator}{other:>{width}}" for separator in (", ", " ")]
        floats = [
            f"{one}.0, {other}.0",
            f"{one}.0,{other}.0",
            f"{one}. {other:>{width}}.",
            f"{one}., {other:>{width}}.",
        ]
        forms |= {text.encode() for text in (*hexadecimal, *integers, *padded, *floats)}
    return _long(forms)


def as_held(row: NDArray[np.uint32]) -> set[bytes]:
    """The likeliest of `of_neighbours`: the array itself in both byte orders, and the list and JSON of it."""
    forms = {pair.astype(kind).tobytes() for pair in _pairs(row) for kind in ("<u4", ">u4")}
    return _long(forms | {", ".join(map(str, pair.tolist())).encode() for pair in _pairs(row)})


def _pairs(row: NDArray[np.uint32]) -> list[NDArray[np.uint32]]:
    return [row[first : first + 2] for first in range(len(row) - 1)]


def of_large(number: int) -> set[bytes]:
    """One number of nine digits or more: in decimals, and as a wide integer or float."""
    assert number > _SMALL, "it would be found by chance"
    wide = {
        number.to_bytes(8, "little"),
        number.to_bytes(8, "big"),
        np.array(number, "<f8").tobytes(),
        np.array(number, ">f8").tobytes(),
    }
    return _long({str(number).encode(), *wide})


def _base64(secret: bytes) -> Iterator[str]:
    """The characters that are the secret's own, at each of the three ways to begin within a group, in both
    alphabets.
    """
    for offset in range(3):
        groups = secret[(3 - offset) % 3 :]
        groups = groups[: len(groups) // 3 * 3]
        yield base64.b64encode(groups).decode()
        yield base64.urlsafe_b64encode(groups).decode()


def _long(forms: set[bytes]) -> set[bytes]:
    return {form for form in forms if len(form) >= LEAST_BYTES}
