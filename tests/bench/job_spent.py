"""What `make bench-job` measured of a job, and the figures that come of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from rich.table import Table

from docs.tutorial.fleet import HELPERS
from tests.bench.harness import best_of

SERVERS: Final = (*HELPERS, "adserver")
COMMANDS: Final = "commands"
_SHARE_BYTES: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Processor seconds of one job.

    Attributes:
        reports: How many the browsers sealed.
        rounds: How many the job ran.
        plain_s: Plain training of the same steps, without clipping.
        phases: Phase, then party: seconds. What command lines spend stands under "commands".
    """

    reports: int
    rounds: int
    plain_s: float
    phases: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        """Of all parties and phases but the start of the servers."""
        return sum(sum(parties.values()) for phase, parties in self.phases.items() if phase != "start")

    def helper_ms_per_round(self) -> float:
        """Of one helper, on average."""
        return 500 * sum(self.phases["train"][helper] for helper in HELPERS) / self.rounds

    def adserver_ms_per_round(self) -> float:
        """Of the server alone."""
        return 1000 * self.phases["train"]["adserver"] / self.rounds


def figures(spent: dict[str, Spent]) -> dict[str, float]:
    """What is aimed for, by the names that the issue gave them."""
    found: dict[str, float] = {}
    if "mnist" in spent:
        mnist = spent["mnist"]
        found["mnist_cpu_s"] = mnist.total_s
        found["mnist_plain_cpu_s"] = mnist.plain_s
        found["mnist_cpu_s_over_plain"] = mnist.total_s / mnist.plain_s
        seal_s, open_s = hpke_s()
        found["hpke_seal_us"], found["hpke_open_us"] = 1e6 * seal_s, 1e6 * open_s
        found["mnist_floor_over_plain"] = 2 * mnist.reports * (seal_s + open_s) / mnist.plain_s
        found["mnist_reports_per_s_per_core"] = mnist.reports / mnist.total_s
        found["intake_us_per_report"] = 1e6 * mnist.phases["upload"]["adserver"] / mnist.reports
        found["upload_us_per_report"] = 1e6 * mnist.phases["upload"][COMMANDS] / mnist.reports
        found["cli_wait_cpu_s"] = mnist.phases["train"][COMMANDS]
        found["helper_ms_per_round_mnist"] = mnist.helper_ms_per_round()
        found["adserver_ms_per_round_mnist"] = mnist.adserver_ms_per_round()
    if "wbcd" in spent:
        found["helper_ms_per_round_tiny"] = spent["wbcd"].helper_ms_per_round()
        found["adserver_ms_per_round_tiny"] = spent["wbcd"].adserver_ms_per_round()
    return {name: round(value, 3) for name, value in found.items()}


def tables(spent: dict[str, Spent]) -> list[Table]:
    """The phases for people."""
    shown = []
    for name, one in spent.items():
        table = Table(
            "phase",
            *SERVERS,
            COMMANDS,
            title=f"{name}: processor seconds of {one.reports:,} reports and {one.rounds} rounds",
        )
        for phase, parties in one.phases.items():
            table.add_row(phase, *(f"{parties.get(party, 0):.2f}" for party in (*SERVERS, COMMANDS)))
        table.add_row("all but start", f"{one.total_s:.1f} in all", f"plain {one.plain_s:.2f}")
        shown.append(table)
    return shown


def hpke_s() -> tuple[float, float]:
    """Seconds of one HPKE seal and one opening of a share's size: the best of eight.

    Each report has two of each, whatever else is done with it.
    """
    suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
    key = X25519PrivateKey.generate()
    sealed = suite.encrypt(bytes(_SHARE_BYTES), key.public_key(), info=b"")

    def best(once: Callable[[], object]) -> float:
        return best_of(lambda: [once() for _ in range(500)], turns=8) / 500

    return (
        best(lambda: suite.encrypt(bytes(_SHARE_BYTES), key.public_key(), info=b"")),
        best(lambda: suite.decrypt(sealed, key, info=b"")),
    )
