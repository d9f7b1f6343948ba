"""The command line of a helper.

helper keygen | serve | warmup | status | budget | keys | certificate
"""

from typing import Final

from maskedlark.terminal.exit_status import run
from maskedlark.terminal.lazy_commands import Lazy, lazy_app

COMMANDS: Final = {
    "keygen": Lazy(
        "helper.cli.commands:keygen_command",
        "Make this helper's keys in --data, and print the public ones. Existing keys are never overwritten.",
    ),
    "serve": Lazy(
        "helper.cli.commands:serve_command",
        "Serve the ad server until SIGTERM, then finish what is under way.",
        environment="HELPER",
    ),
    "warmup": Lazy(
        "helper.cli.commands:warmup_command",
        "Compile what rounds need and check this machine's arithmetic, so that `serve` is ready at once.",
    ),
    "status": Lazy(
        "helper.cli.commands:status_command",
        "Show who a running helper is and what it holds.",
        environment="HELPER",
    ),
    "budget": Lazy(
        "helper.cli.commands:budget_command",
        "Show what is spent, reserved and left of each dataset's budgets.",
    ),
    "keys": Lazy("helper.cli.keys:keys_app", "The HPKE keys that browsers seal to."),
    "certificate": Lazy(
        "helper.cli.certificate:certificate_app",
        "The TLS certificate that peers pin: show it, and renew it in two steps.",
    ),
}

app = lazy_app(
    "A helper of Masked LARk: opens its shares of reports, and answers rounds with masked, clipped, noised "
    "sums.",
    COMMANDS,
)


def main() -> None:
    """Run the command line; a refusal becomes one line and an exit status."""
    run(app)
