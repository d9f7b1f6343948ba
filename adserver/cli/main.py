"""The command line of the ad server.

`COMMANDS` lists what it can do, and where each command is.
"""

from typing import Final

from maskedlark.runtime import gc_tuning, library_env
from maskedlark.terminal.exit_status import run
from maskedlark.terminal.lazy_commands import Lazy, lazy_app


def _commands(module: str, *names: str) -> dict[str, Lazy]:
    """Return the commands of one module of this room, each named like its function."""
    return {name: Lazy(f"adserver.cli.{module}:{name.replace('-', '_')}_command") for name in names}


_JOB: Final = _commands("plan", "plan") | _commands(
    "job", "submit", "list", "show", "watch", "cancel", "resume"
)
_FEDERATED: Final = _commands("simulate_draws", "simulate-draws") | _commands("simulate", "simulate")
COMMANDS: Final = {
    "budget": Lazy("adserver.cli.budget:budget_command"),
    "aggregate": Lazy("adserver.cli.aggregate:aggregate_command"),
    "evaluate": Lazy("adserver.cli.evaluate:evaluate_command"),
    "serve": Lazy("adserver.cli.serve:serve_command", environment="ADSERVER"),
    "intake": Lazy("adserver.cli.intake:intake_command", environment="ADSERVER"),
    "keygen": Lazy("adserver.cli.serve:keygen_command"),
    "task": Lazy(
        _commands("task_creation", "create") | _commands("task", "show", "refresh-keys", "list"),
        "Make tasks that both helpers sign, and show them.",
    ),
    "dataset": Lazy(
        _commands("dataset", "seal", "list", "abandon"), "Seal reports into datasets, and list them."
    ),
    "job": Lazy(
        _JOB,
        "Train models: plan and submit jobs, follow them, cancel and resume them.",
    ),
    "model": Lazy(
        _commands("model", "create", "show", "evaluate", "export"),
        "Make, look at, evaluate and export models.",
    ),
    "dashboard": Lazy(
        _commands("access", "login"), "The pages of `adserver serve --dashboard-listen`: log a browser in."
    ),
    "token": Lazy(
        _commands("access", "create", "list", "revoke"),
        "Tokens of the admin API: make, list and revoke them.",
    ),
    "certificate": Lazy(
        "adserver.cli.certificate:certificate_app",
        "The TLS certificate that peers pin: show it, and renew it in two steps.",
    ),
    "quickstart": Lazy(
        "adserver.cli.quickstart:quickstart_app",
        "A whole fleet on this machine, in one project folder: your table, your model, one settings file.",
    ),
    "federated": Lazy(
        _FEDERATED,
        "Federated training: devices train, and their updates are summed.",
    ),
    "local": Lazy(
        "adserver.cli.local:local_app",
        "Jobs that need no helpers: devices noise their own updates (LINE, draw and discard).",
    ),
}

app = lazy_app(
    "The ad server of Masked LARk: takes in sealed reports, and trains models through two helpers without"
    " seeing a report.",
    COMMANDS,
)


def main() -> None:
    """Run the command line; a refusal becomes one line and an exit status."""
    library_env.settle()
    with gc_tuning.command():
        run(app)
