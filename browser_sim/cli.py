"""The command line of the simulated browsers.

browser-sim run | devices | describe | encode | download
"""

from typing import Final

from maskedlark.runtime import gc_tuning, library_env
from maskedlark.terminal.exit_status import run
from maskedlark.terminal.lazy_commands import Lazy, lazy_app

COMMANDS: Final = {
    "run": Lazy("browser_sim.commands:_run_command"),
    "devices": Lazy("browser_sim.devices.cli:_devices_command"),
    "describe": Lazy("browser_sim.commands:_describe_command"),
    "encode": Lazy("browser_sim.encode_command:_encode_command"),
    "download": Lazy("browser_sim.commands:_download_command"),
}

app = lazy_app(
    "Simulated people and browsers: they see ads, convert or not, and report under Masked LARk.", COMMANDS
)


def main() -> None:
    """Run the command line."""
    library_env.settle()
    with gc_tuning.command():
        run(app)
