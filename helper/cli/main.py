"""The command line of a helper.

lark-helper keygen | serve | warmup | status | budget | audit | keys | certificate | cluster
"""

from typing import Final

from maskedlark.runtime import gc_tuning, library_env
from maskedlark.terminal.exit_status import run
from maskedlark.terminal.lazy_commands import Lazy, lazy_app

# By name, so that a command's modules are imported only where it runs: help appears at once.
COMMANDS: Final = {
    "keygen": Lazy("helper.cli.commands:_keygen_command"),
    "serve": Lazy("helper.cli.serve:_serve_command", environment="HELPER"),
    "warmup": Lazy("helper.cli.serve:_warmup_command"),
    "status": Lazy("helper.cli.commands:_status_command", environment="HELPER"),
    "budget": Lazy("helper.cli.commands:_budget_command"),
    "audit": Lazy("helper.cli.audit:audit_app", "Show, export and verify the log of who did what."),
    "keys": Lazy("helper.cli.keys:keys_app", "List and rotate the HPKE keys that browsers seal to."),
    "certificate": Lazy(
        "helper.cli.certificate:certificate_app",
        "Show the TLS certificate that peers pin, or renew it in two steps.",
    ),
    "cluster": Lazy(
        "helper.cli.cluster:cluster_app",
        "Create the secrets of this helper's own Ray cluster: tokens and certificates.",
    ),
}

app = lazy_app(
    "A Masked LARk helper: opens its shares of reports and answers rounds with masked, clipped, noisy sums.",
    COMMANDS,
)


def main() -> None:
    """Run the command line; a refusal becomes one line and an exit status."""
    library_env.settle()
    with gc_tuning.command():
        run(app)
