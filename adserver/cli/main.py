"""The command line of the ad server.

`COMMANDS` lists what it can do, and where each command is.
"""

from typing import Final

from maskedlark.terminal.exit_status import run
from maskedlark.terminal.lazy_commands import Lazy, lazy_app

_TASK: Final = {
    "create": Lazy("adserver.cli.task:create_command"),
    "show": Lazy("adserver.cli.task:show_command"),
    "refresh-keys": Lazy("adserver.cli.task:refresh_keys_command"),
    "list": Lazy("adserver.cli.task:list_command"),
}
_DATASET: Final = {
    "seal": Lazy("adserver.cli.dataset:seal_command"),
    "list": Lazy("adserver.cli.dataset:list_command"),
    "abandon": Lazy("adserver.cli.dataset:abandon_command"),
}
_JOB: Final = {
    "plan": Lazy("adserver.cli.plan:plan_command"),
    "submit": Lazy("adserver.cli.job:submit_command"),
    "list": Lazy("adserver.cli.job:list_command"),
    "show": Lazy("adserver.cli.job:show_command"),
    "watch": Lazy("adserver.cli.job:watch_command"),
    "cancel": Lazy("adserver.cli.job:cancel_command"),
    "resume": Lazy("adserver.cli.job:resume_command"),
}
_MODEL: Final = {
    "create": Lazy("adserver.cli.model:create_command"),
    "show": Lazy("adserver.cli.model:show_command"),
    "evaluate": Lazy("adserver.cli.model:evaluate_command"),
    "export": Lazy("adserver.cli.model:export_command"),
}
_FEDERATED: Final = {
    "simulate-draws": Lazy("adserver.cli.simulate_draws:simulate_draws_command"),
    "simulate": Lazy("adserver.cli.simulate:simulate_command"),
}
_DASHBOARD: Final = {"login": Lazy("adserver.cli.access:login_command")}
_TOKEN: Final = {
    "create": Lazy("adserver.cli.access:create_command"),
    "list": Lazy("adserver.cli.access:list_command"),
    "revoke": Lazy("adserver.cli.access:revoke_command"),
}
COMMANDS: Final = {
    "budget": Lazy("adserver.cli.budget:budget_command"),
    "aggregate": Lazy("adserver.cli.aggregate:aggregate_command"),
    "evaluate": Lazy("adserver.cli.evaluate:evaluate_command"),
    "serve": Lazy("adserver.cli.serve:serve_command", environment="ADSERVER"),
    "keygen": Lazy("adserver.cli.serve:keygen_command"),
    "task": Lazy(_TASK, "Make tasks that both helpers sign, and show them."),
    "dataset": Lazy(_DATASET, "Seal reports into datasets, and list them."),
    "job": Lazy(
        _JOB,
        "Train models: plan and submit jobs, follow them, cancel and resume them.",
    ),
    "model": Lazy(_MODEL, "Make, look at, evaluate and export models."),
    "dashboard": Lazy(_DASHBOARD, "The pages of `adserver serve --dashboard-listen`: log a browser in."),
    "token": Lazy(_TOKEN, "Tokens of the admin API: make, list and revoke them."),
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
    run(app)
