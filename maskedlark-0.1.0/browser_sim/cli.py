"""The command line of the simulated browsers.

browser-sim run | devices | describe | encode | download
"""

from typing import Final

from maskedlark.terminal.lazy_commands import Lazy, lazy_app

COMMANDS: Final = {
    "run": Lazy(
        "browser_sim.commands:run_command",
        "Let every record happen to somebody once, and upload what their browsers report.",
    ),
    "devices": Lazy(
        "browser_sim.devices.cli:devices_command",
        "Answer a task's federated rounds until there are no more.",
    ),
    "describe": Lazy(
        "browser_sim.commands:describe_command",
        "Say what a source holds: its shape, the balance of its labels, how features become bytes.",
    ),
    "encode": Lazy(
        "browser_sim.encode_command:encode_command",
        "Fit an encoder to a table (--fit), or apply one to a table (--encoder, --csv).",
    ),
    "download": Lazy(
        "browser_sim.commands:download_command",
        "Fetch a public data set and check its SHA-256.",
    ),
}

app = lazy_app(
    "Simulated people and browsers: they see ads, convert or not, and report under Masked LARk.", COMMANDS
)


def main() -> None:
    """Run the command line."""
    app()
