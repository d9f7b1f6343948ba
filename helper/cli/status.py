"""What `lark-helper status` asks a running helper."""

from contextlib import closing
from typing import Final, Literal, TypeAlias, get_args

from maskedlark.canonical import build, decode
from maskedlark.reports.sealing import SignedKeyList
from maskedlark.reports.task import HelperIdentity
from maskedlark.rpc.faults import calling
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import RenewedChannel
from protos import helper_pb2, helper_pb2_grpc

_Count: TypeAlias = Literal["tasks", "datasets", "open_jobs", "rounds_answered"]
WELL: Final = "yes"
"""The row `well` of a helper that is; otherwise the row says what is wrong."""
# Told on a plaintext connection only.
_COUNTS: Final[tuple[_Count, ...]] = get_args(_Count)


def fetch_status(address: str, tls: TlsFiles | None, *, deadline_s: float) -> dict[str, str | int]:
    """Ask a helper for its identity and what it holds: the lines of its status, by name.

    Raises:
        HelperUnavailable: it does not answer.
        InvalidSetting: plaintext to another machine, TLS files that cannot be used, no certificate in them
            that may be for the helper's host, or HPKE keys that the key that comes with them did not sign.
    """
    advice = _describe_trust(tls)
    with closing(RenewedChannel(address, tls)) as channel, calling(f"helper at {address}", advice):
        stub = helper_pb2_grpc.HelperStub(channel.current())
        reply: helper_pb2.StatusReply = stub.GetStatus(helper_pb2.StatusRequest(), timeout=deadline_s)
    return _rows(reply)


def _describe_trust(tls: TlsFiles | None) -> str:
    """Name the files that decide whether the two trust each other: a helper need not trust itself."""
    if tls is None:
        return ""
    return (
        f"; this shows {tls.certificate} and trusts {tls.trusted_authorities} (--tls-cert, --tls-ca): "
        "the helper must trust the first, and the second must have the helper's certificate"
    )


def _rows(reply: helper_pb2.StatusReply) -> dict[str, str | int]:
    signed = decode(SignedKeyList, reply.key_list)
    # Only shows that the list and the key belong together: the fingerprint is for people to compare.
    signed.verify(reply.verify_key)
    keys = ", ".join(f"{key.key_id} ({key.suite.value})" for key in signed.key_list.keys)
    identity = build(
        HelperIdentity,
        {"name": reply.name, "verify_key": reply.verify_key, "agreement_key": reply.agreement_key},
    )
    return {
        "name": reply.name,
        "version": reply.version,
        # A helper of before versions were told says nothing, which means 1 (ADR 54).
        "protocols": ", ".join(map(str, reply.protocols)) or "1",
        "verify_key": reply.verify_key.hex(),
        "agreement_key": reply.agreement_key.hex(),
        "fingerprint": identity.fingerprint,
        "hpke_keys": keys,
        "software_digest": reply.numerics_digest.hex(),
        "well": f"no: {reply.not_well}" if reply.not_well else WELL,
        **{name: getattr(reply, name) for name in _COUNTS if reply.HasField(name)},
    }
