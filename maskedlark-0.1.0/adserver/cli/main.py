"""The command line of the ad server.

`COMMANDS` lists what it can do, and where each command is.
"""

from typing import Final

from maskedlark.terminal.exit_status import run
from maskedlark.terminal.lazy_commands import Lazy, lazy_app

COMMANDS: Final = {
    "budget": Lazy(
        "adserver.cli.budget:budget_command",
        "Show what is spent, reserved and left of each dataset's two budgets.",
    ),
    "aggregate": Lazy(
        "adserver.cli.aggregate:aggregate_command",
        "Measure a dataset: sums of values over groups of reports, charged to its privacy budget.",
    ),
    "evaluate": Lazy("adserver.cli.evaluate:evaluate_command", "Evaluate a model on a dataset."),
    "serve": Lazy(
        "adserver.cli.serve:serve_command",
        "Take reports in over gRPC and HTTP, serve tasks, and run jobs, until SIGTERM.",
        environment="ADSERVER",
    ),
    "keygen": Lazy(
        "adserver.cli.serve:keygen_command",
        "Make this server's TLS key and certificate in --data, for helpers to trust; existing ones stay.",
    ),
    "task": Lazy("adserver.cli.task:task_app", "Make tasks that both helpers sign, and show them."),
    "dataset": Lazy("adserver.cli.dataset:dataset_app", "Seal reports into datasets, and list them."),
    "job": Lazy(
        "adserver.cli.job:job_app",
        "Train models: plan and submit jobs, follow them, cancel and resume them.",
    ),
    "model": Lazy("adserver.cli.model:model_app", "Make, look at, evaluate and export models."),
    "certificate": Lazy(
        "adserver.cli.certificate:certificate_app",
        "The TLS certificate that peers pin: show it, and renew it in two steps.",
    ),
    "quickstart": Lazy(
        "adserver.cli.quickstart:quickstart_app",
        "A whole fleet on this machine, in one project folder: your table, your model, one settings file.",
    ),
    "federated": Lazy(
        "adserver.cli.simulate:federated_app",
        "Federated training: devices train, and their updates are summed.",
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
