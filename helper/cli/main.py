"""The command line of a helper.

helper keygen | serve | warmup | status | budget | keys | certificate | cluster
"""

from typing import Final

from maskedlark.runtime import gc_tuning, library_env
from maskedlark.terminal.exit_status import run
from maskedlark.terminal.lazy_commands import Lazy, lazy_app

COMMANDS: Final = {
    "keygen": Lazy("helper.cli.commands:keygen_command"),
    "serve": Lazy("helper.cli.serve:serve_command", environment="HELPER"),
    "warmup": Lazy("helper.cli.serve:warmup_command"),
    "status": Lazy("helper.cli.commands:status_command", environment="HELPER"),
    "budget": Lazy("helper.cli.commands:budget_command"),
    "keys": Lazy("helper.cli.keys:keys_app", "The HPKE keys that browsers seal to."),
    "certificate": Lazy(
        "helper.cli.certificate:certificate_app",
        "The TLS certificate that peers pin: show it, and renew it in two steps.",
    ),
    "cluster": Lazy(
        "helper.cli.cluster:cluster_app",
        "The secrets of this helper's own Ray cluster: tokens and certificates.",
    ),
}

app = lazy_app(
    "A helper of Masked LARk: opens its shares of reports, and answers rounds with masked, clipped, noised "
    "sums.",
    COMMANDS,
)


def main() -> None:
    """Run the command line; a refusal becomes one line and an exit status."""
    library_env.settle()
    with gc_tuning.command():
        run(app)
