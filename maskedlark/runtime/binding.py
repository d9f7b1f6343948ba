"""Why a server cannot listen on its address."""

import errno
import socket
from typing import Final

_NO_ADDRESS: Final = "expected host:port with a port of at most 65535"
_CAUSES: Final = {
    errno.EADDRINUSE: "another program uses the port: stop it, or choose another port",
    errno.EADDRNOTAVAIL: (
        "this machine has no such address: give one of its own, or 0.0.0.0 (or [::]) for all of them"
    ),
    errno.EACCES: "this user may not use the port: choose one above 1023",
}


def why_not_bound(address: str) -> str:
    """Say what is wrong with host:port and what to do, by trying to bind it once more."""
    host, _, port = address.rpartition(":")
    try:
        if int(port) not in range(1 << 16):
            return _NO_ADDRESS
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as tried:
            # As servers do: connections that have just ended do not keep a port
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(place)
    except socket.gaierror:
        return f"{host!r} is neither an address nor a name that is known here"
    except ValueError:  # a port that is no number, or a name that no name can be
        return _NO_ADDRESS
    except OSError as error:
        return _CAUSES.get(error.errno or 0, error.strerror or "the system refuses it")
    return "the port was in use a moment ago: try again"
