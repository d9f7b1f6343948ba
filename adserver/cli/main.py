"""The command line of the ad server.

`COMMANDS` lists what it can do, and where each command is.
"""

from typing import Final

from maskedlark.runtime import gc_tuning, library_env
from maskedlark.terminal.exit_status import run
from maskedlark.terminal.lazy_commands import Lazy, lazy_app


# Names, not functions, so that a command's module is imported when the command is used
def _commands(module: str, *names: str) -> dict[str, Lazy]:
    """Return the commands of one module of this room, each named like its function."""
    return {name: Lazy(f"adserver.cli.{module}:_{name.replace('-', '_')}_command") for name in names}


_JOB: Final = (
    _commands("plan", "plan")
    | _commands("rehearse", "rehearse")
    | _commands("job", "submit", "list", "show", "compare", "watch", "cancel", "close", "resume")
)
_FEDERATED: Final = _commands("simulate_draws", "simulate-draws") | _commands("simulate", "simulate")
COMMANDS: Final = {
    "budget": Lazy("adserver.cli.budget:_budget_command"),
    "aggregate": Lazy("adserver.cli.aggregate:_aggregate_command"),
    "evaluate": Lazy("adserver.cli.evaluate:_evaluate_command"),
    "query": Lazy(_commands("status", "list"), "List queries and evaluations."),
    "status": Lazy("adserver.cli.status:_status_command"),
    "serve": Lazy("adserver.cli.serve:_serve_command", environment="ADSERVER"),
    "intake": Lazy("adserver.cli.intake:_intake_command", environment="ADSERVER"),
    "keygen": Lazy("adserver.cli.serve:_keygen_command"),
    "task": Lazy(
        _commands("task_creation", "create") | _commands("task", "show", "refresh-keys", "list"),
        "Create tasks that both helpers sign, and show them.",
    ),
    "dataset": Lazy(
        _commands("dataset", "seal", "list", "abandon"), "Seal reports into datasets, and list datasets."
    ),
    "job": Lazy(
        _JOB,
        "Train models: plan, submit, follow, compare, cancel and resume jobs.",
    ),
    "model": Lazy(
        _commands("model", "create", "show", "evaluate", "predict", "compare", "export", "calibrate"),
        "Create, inspect, evaluate, apply, compare, export and calibrate models.",
    ),
    "dashboard": Lazy(
        _commands("access", "login"),
        "Log a browser in to the dashboard of `adserver serve --dashboard-listen`.",
    ),
    "token": Lazy(
        _commands("access", "create", "list", "revoke"),
        "Create, list and revoke tokens for the admin API.",
    ),
    "statement": Lazy(
        _commands("statement", "list", "export", "verify"),
        "What both helpers say, and signed, that each job and query cost.",
    ),
    "audit": Lazy(
        _commands("audit", "list", "export", "verify"), "Show, export and verify the log of who did what."
    ),
    "certificate": Lazy(
        "adserver.cli.certificate:certificate_app",
        "Show the TLS certificate that peers pin, or renew it in two steps.",
    ),
    "quickstart": Lazy(
        "adserver.cli.quickstart:quickstart_app",
        "Run both helpers and an ad server on this machine from one project folder, with your "
        "table and model.",
    ),
    "federated": Lazy(
        _FEDERATED,
        "Train models on devices: the helpers sum the devices' updates.",
    ),
}

app = lazy_app(
    "The Masked LARk ad server: receives sealed reports and trains models through two helpers "
    "without seeing a report.",
    COMMANDS,
)


def main() -> None:
    """Run the command line; a refusal becomes one line and an exit status."""
    library_env.settle()
    with gc_tuning.command():
        run(app)
