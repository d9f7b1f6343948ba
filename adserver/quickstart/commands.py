"""Commands that a project's owner could type, each run to its end with the project's servers.

commands = ProjectCommands(project, watched=running.require)
commands.run("adserver", "model", "create", "m.onnx", "--layers", "30,1")     # what it printed
commands.read("adserver", "job", "list")                                      # what it printed as JSON
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

from adserver.quickstart.project import Project
from adserver.quickstart.running import command
from maskedlark.errors import InvalidTask

_WATCHED_EVERY_S: Final = 1.0
# What a terminal draws around a message.
_NO_FRAME: Final = dict.fromkeys(map(ord, "│╭╮╰╯─"))


class ProjectCommands:
    """Runs commands in a project's environment, and ends them early if a server ends."""

    def __init__(self, project: Project, watched: Callable[[], None]) -> None:
        """`watched` is called while a command runs; it raises if a server has ended."""
        self._project = project
        self._watched = watched

    def during(self, look: Callable[[], None], *, every_s: float) -> "ProjectCommands":
        """Return the same commands; while one of them runs, `look` is called every so many seconds, too."""
        due = time.monotonic() + every_s

        def watch() -> None:
            nonlocal due
            self._watched()
            if time.monotonic() >= due:
                look()
                due = time.monotonic() + every_s

        return ProjectCommands(self._project, watch)

    def read(self, program: str, *arguments: str) -> Any:
        """Run one command with `--json`, and return what it printed; raises as `run`."""
        return json.loads(self.run(program, *arguments, "--json"))

    def run(self, program: str, *arguments: str) -> str:
        """Run one command, and return what it printed.

        Raises:
            InvalidTask: it failed; the message is the command's.
        """
        ended = self.end(program, *arguments)
        if ended.returncode != 0:
            raise InvalidTask(describe_refusal(ended, f"{program} {' '.join(arguments[:2])}"))
        return ended.stdout

    def end(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run one command to its end, whatever its status; raises as `watched`."""
        with subprocess.Popen(  # noqa: S603  our own program
            [command(program), *arguments],
            env={**os.environ, **self._project.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            try:
                while True:
                    try:
                        out, err = child.communicate(timeout=_WATCHED_EVERY_S)
                        # A server that has ended is why a command failed
                        if child.returncode != 0:
                            self._watched()
                        return subprocess.CompletedProcess(child.args, child.returncode, out, err)
                    except subprocess.TimeoutExpired:
                        self._watched()
            # Ctrl-C as well: a command that went on alone would change what its owner believes to be stopped.
            except BaseException:
                child.terminate()
                raise


def describe_refusal(ended: "subprocess.CompletedProcess[str]", what: str) -> str:
    """Return what a failed command said, in one line; never nothing."""
    said = " ".join(ended.stderr.translate(_NO_FRAME).split())[-2_000:]
    return f"{what}: {said or f'it ended with status {ended.returncode} and said nothing'}"
