r"""The origin of a task, which has one spelling: the one that browsers give it (RFC 6454, section 6.2).

    https://ads.example      http://127.0.0.1:8080      https://[2001:db8::1]

Certificates name an origin or its host, and a helper serves a task to the holder of such a name. Both are
compared as text, so no origin may read as two hosts: `https://victim.example\@rival.example` is one host to a
browser and another one to a parser of RFC 3986.
"""

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, Field

MAX_ORIGIN: Final = 200
SPELLING: Final = (
    "an origin is scheme://host or scheme://host:port as browsers spell it: http or https, lower-case ASCII, "
    "no path, no user, no final dot, no default port (https://ads.example)"
)
_ORIGIN: Final = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<v6>[0-9a-f:]+)\]|(?P<host>[0-9a-z.-]+))(?::(?P<port>[1-9][0-9]{0,4}))?",
    re.ASCII,
)
_LABEL: Final = re.compile(r"[0-9a-z](?:[0-9a-z-]{0,61}[0-9a-z])?", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_DEFAULT_PORT: Final = {"http": 80, "https": 443}
_LAST_PORT: Final = (1 << 16) - 1


def split_origin(text: str) -> str | None:
    """Return the host of an origin, without brackets; None for any text that is not an origin's one spelling.

    The scheme is http or https. A host is an IPv4 or IPv6 address or a name of lower-case labels, those of
    other scripts in their `xn--` form, without a final dot. A port that is the scheme's own is left out.
    """
    found = _ORIGIN.fullmatch(text)
    if found is None or len(text) > MAX_ORIGIN:
        return None
    port = found["port"]
    if port is not None and (int(port) > _LAST_PORT or int(port) == _DEFAULT_PORT[found["scheme"]]):
        return None
    host = found["v6"] or found["host"]
    is_spelled_so = _is_ipv6(host) if found["v6"] else _is_name_or_ipv4(host)
    return host if is_spelled_so else None


def _is_ipv6(host: str) -> bool:
    try:
        address = IPv6Address(host)
    except ValueError:
        return False
    # the spelling of an IPv4 address within an IPv6 one differs between browsers and versions of Python
    return address.ipv4_mapped is None and str(address) == host


def _is_name_or_ipv4(host: str) -> bool:
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # to a browser it is an IPv4 address, in whatever spelling
        try:
            return str(IPv4Address(host)) == host
        except ValueError:
            return False
    return all(map(_LABEL.fullmatch, labels))


def _check_origin(text: str) -> str:
    if split_origin(text) is None:
        raise ValueError(SPELLING)
    return text


Origin: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_ORIGIN), AfterValidator(_check_origin)]
