import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.hmac_sha256 import HmacKey, hmac_sha256

KEYS = st.binary(max_size=64)


@given(key=KEYS, start=st.binary(max_size=200), rest=st.binary(max_size=200))
def test_tags_are_the_standard_librarys(key: bytes, start: bytes, rest: bytes) -> None:
    expected = hmac.digest(key, start + rest, "sha256")
    assert hmac_sha256(key, start + rest) == expected
    assert HmacKey(key).tag(start + rest) == expected
    assert HmacKey(key).after(start).tag(rest) == expected


def test_a_key_gives_the_same_tag_again_and_again() -> None:
    key = HmacKey(b"k" * 32)
    begun = key.after(b"start")
    assert key.tag(b"one") == key.tag(b"one") != key.tag(b"two")
    assert begun.tag(b"one") == begun.tag(b"one") == key.tag(b"startone")


@pytest.mark.parametrize("make", [HmacKey, lambda key: hmac_sha256(key, b"")])
def test_a_key_longer_than_a_block_is_refused(make: type[HmacKey]) -> None:
    with pytest.raises(ValueError, match="at most 64 bytes"):
        make(bytes(65))


def test_a_key_does_not_show_in_its_repr() -> None:
    assert repr(HmacKey(b"secret")) == "HmacKey(<redacted>)"
