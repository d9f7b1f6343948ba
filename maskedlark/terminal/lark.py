"""`lark`: the commands of all parties under one name.

lark demo | quickstart | adserver | helper | browser

`lark helper serve` is `lark-helper serve`. Each party is imported when one of its commands is used, and needs
the extra of its name: `pip install "masked-lark[helper]"`.
"""

from typing import Final

from maskedlark.runtime import gc_tuning, library_env
from maskedlark.terminal.exit_status import run
from maskedlark.terminal.lazy_commands import Lazy, lazy_app

COMMANDS: Final = {
    "demo": Lazy("adserver.cli.quickstart:_demo_command"),
    "quickstart": Lazy("adserver.cli.quickstart:quickstart_app", "Train on your own table, on this machine."),
    "adserver": Lazy("adserver.cli.main:app", "Run an ad server and its jobs (the command `adserver`)."),
    "helper": Lazy("helper.cli.main:app", "Run a helper (the command `lark-helper`)."),
    "browser": Lazy("browser_sim.cli:app", "Simulate browsers and devices (the command `browser-sim`)."),
}

app = lazy_app(
    "Masked LARk: train models and measure campaigns on data that nobody can see, through two helpers.",
    COMMANDS,
)


def main() -> None:
    """Run the command line; a refusal becomes one line and an exit status."""
    library_env.settle()
    with gc_tuning.command():
        run(app)
