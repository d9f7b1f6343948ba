"""The command line of the ad server.

`COMMANDS` lists what it can do, and where each command is.
"""

from typing import Final

from maskedlark.terminal.exit_status import run
from maskedlark.terminal.lazy_commands import Lazy, lazy_app

_TASK: Final = {
    "create": Lazy(
        "adserver.cli.task:create_command",
        "Make a task: both helpers check it against their floors and sign it. Prints its id.",
    ),
    "show": Lazy("adserver.cli.task:show_command", "Show a task's settings, and how many reports it has."),
    "refresh-keys": Lazy(
        "adserver.cli.task:refresh_keys_command",
        "Ask the helpers for their HPKE keys now; a running server does so every minute.",
    ),
    "list": Lazy("adserver.cli.task:list_command", "List all tasks, the oldest first."),
}
_DATASET: Final = {
    "seal": Lazy(
        "adserver.cli.dataset:seal_command", "Make the waiting reports of a task a dataset at both helpers."
    ),
    "list": Lazy("adserver.cli.dataset:list_command", "List all datasets, the oldest first."),
    "abandon": Lazy(
        "adserver.cli.dataset:abandon_command",
        "Give up a dataset that a helper refuses to commit, and let its reports wait again.",
    ),
}
_JOB: Final = {
    "plan": Lazy(
        "adserver.cli.plan:plan_command",
        "Find the noise, batch size or rounds that fit a dataset's budgets, and predict noise over signal.",
    ),
    "submit": Lazy(
        "adserver.cli.job:submit_command",
        "Check a job and queue it; `adserver serve` runs it. Prints its id.",
    ),
    "list": Lazy("adserver.cli.job:list_command", "List all jobs, the oldest first."),
    "show": Lazy(
        "adserver.cli.job:show_command", "Show a job: its settings, how far it is, what it has spent."
    ),
    "watch": Lazy(
        "adserver.cli.job:watch_command",
        "Follow a job until it stops; the exit status is 1 unless it is done.",
    ),
    "cancel": Lazy(
        "adserver.cli.job:cancel_command",
        "Stop a job for good, within about a second; the budget of rounds that were not run is given back.",
    ),
    "resume": Lazy(
        "adserver.cli.job:resume_command",
        "Queue a refused or failed job again: it goes on with the round that it stopped at.",
    ),
}
_MODEL: Final = {
    "create": Lazy(
        "adserver.cli.model:create_command", "Write a fully connected network with random weights."
    ),
    "show": Lazy(
        "adserver.cli.model:show_command", "Show what a job would train in a model: its trainable tensors."
    ),
    "evaluate": Lazy(
        "adserver.cli.model:evaluate_command",
        "Measure a model's loss, and a classifier's accuracy, on plain examples.",
    ),
    "export": Lazy(
        "adserver.cli.model:export_command", "Write a job's latest weights, in the file that was submitted."
    ),
}
_FEDERATED: Final = {
    "simulate-draws": Lazy(
        "adserver.cli.simulate_draws:simulate_draws_command",
        "Run draw and discard on simulated clients: multinomial regression, one client after the other.",
    ),
    "simulate": Lazy(
        "adserver.cli.simulate:simulate_command",
        "Run a strategy on simulated devices, all in this process, by the functions that real ones run.",
    ),
}
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
    "task": Lazy(_TASK, "Make tasks that both helpers sign, and show them."),
    "dataset": Lazy(_DATASET, "Seal reports into datasets, and list them."),
    "job": Lazy(
        _JOB,
        "Train models: plan and submit jobs, follow them, cancel and resume them.",
    ),
    "model": Lazy(_MODEL, "Make, look at, evaluate and export models."),
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
