"""Bytes that are almost right: what fuzzing finds most with."""

from hypothesis import strategies as st


@st.composite
def almost(draw: st.DrawFn, *valid: bytes) -> bytes:
    """One of some valid encodings with up to four cuts, insertions, overwritten bytes or repeated pieces; or bytes of no form at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    encoded = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(encoded)))
        end = min(len(encoded), place + draw(st.sampled_from((0, 1, 2, 4, 8, 64, 100_000))))
        match draw(st.integers(0, 3)):
            case 0:
                del encoded[place:end]
            case 1:
                encoded[place:place] = draw(st.binary(max_size=16))
            case 2:
                encoded[place:end] = draw(st.binary(min_size=min(end - place, 64), max_size=64))
            case _:
                encoded[place:place] = encoded[place:end]
    return bytes(encoded)
