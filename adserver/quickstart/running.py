"""The three servers of a project, as processes of this machine that outlive the command that starts them.

running = RunningFleet(project, tell=print)
running.up()        # returns once all three answer
running.down()
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from adserver.dashboard.address import ADDRESS_FILE
from adserver.quickstart.helper_floors import FLOORS
from adserver.quickstart.project import Project
from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.escape import escape
from maskedlark.frozen import frozen
from maskedlark.terminal.exit_status import find_missing, how_to_install

_POLL_S: Final = 0.05
# A first start compiles for up to a minute, and for many on a machine that is busy with others.
_PATIENCE_S: Final = 1_800.0
_TELL_AFTER_S: Final = 3.0
_STOP_S: Final = 60.0
# Bytes of a log that are read for each line that is shown.
_LONGEST_LINE: Final = 1_000
# Says that `up` was asked for these servers, so that no run ends them
_HELD: Final = "held"
# Says that `down` has stopped these servers, so that a run that needs them can tell why they ended
_STOPPED: Final = "stopped"
# Lines of a log that are shown where its server has ended
_LOG_LINES: Final = 10
# Locked by the one command that starts servers, or decides whether they stay
_LOCK: Final = ".starting"
_DASHBOARD_PARTS: Final = ("fastapi", "jinja2", "starlette")


def require_installed(*extras: str) -> None:
    """Refuse to start what lacks a package of these extras.

    Raises:
        InvalidTask: one is missing; the message says how to install all that a project needs.
    """
    if missing := find_missing(extras):
        raise InvalidTask(how_to_install(missing, "adserver.cli.quickstart", needs="a project's run"))


@frozen
class Server:
    """One process of the fleet.

    Attributes:
        name: Of its folder, log and files.
        keygen: The command that makes its keys, if it needs any.
        serve: The command that serves; it writes `ready` once it answers.
        ready: That file.
    """

    name: str
    keygen: tuple[str, ...]
    serve: tuple[str, ...]
    ready: Path


@frozen
class ServerStatus:
    """What a server does now.

    Attributes:
        name: Of the server.
        process: Its process id; None if it does not run.
        listens_on: Its addresses, as host:port.
        log: Its log.
    """

    name: str
    process: int | None
    listens_on: str
    log: Path


def command(program: str) -> str:
    """Return the path of one of our programs, next to this Python or on the PATH.

    Raises:
        InvalidTask: it is not installed.
    """
    # This Python's folder first: a virtual environment need not be activated to be used.
    found = shutil.which(
        program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if found is None:
        raise InvalidTask(f"{program} is not installed here: pip install 'masked-lark[quickstart]'")
    return found


class RunningFleet:
    """The servers of a project: started once, found again by later commands."""

    def __init__(self, project: Project, tell: Callable[[str], None]) -> None:
        """`tell` gets one line a step."""
        self._project = project
        self._tell = tell
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._log_began: dict[str, int] = {}

    @property
    def has_dashboard(self) -> bool:
        """Whether the ad server has a dashboard: an address is set, and the extra for it is installed."""
        return bool(self._dashboard())

    @property
    def is_held(self) -> bool:
        """True if the servers stay when a run ends: `up` was asked for them."""
        return (self._project.parties / _HELD).exists()

    def states(self) -> "tuple[ServerStatus, ...]":
        """Return what each server does now."""
        at = self._project.settings.servers
        listening = (
            at.helper_0,
            at.helper_1,
            ", ".join(filter(None, (at.adserver_grpc, at.adserver_http, at.dashboard))),
        )
        return tuple(
            ServerStatus(name=one.name, process=self._pid(one), listens_on=address, log=self._log(one))
            for one, address in zip(self._servers(), listening, strict=True)
        )

    def login_link(self) -> str:
        """Return a link that logs one browser in to the dashboard, once, within ten minutes.

        Raises:
            InvalidTask: there is no dashboard here; the message says what to do.
        """
        parties = self._project.parties
        if not self._project.settings.servers.dashboard:
            raise InvalidTask('[servers] dashboard is "": set it to a free address, such as 127.0.0.1:28000')
        if not self._dashboard():
            raise InvalidTask("the dashboard is not installed here: pip install 'masked-lark[dashboard]'")
        if not (parties / "adserver" / ADDRESS_FILE).exists():
            raise InvalidTask(
                "the ad server runs without its dashboard: `adserver quickstart down`, then `up --dashboard`"
            )
        login = [command("adserver"), "dashboard", "login", "--data", str(parties / "adserver")]
        made = subprocess.run(login, capture_output=True, text=True, check=False)  # noqa: S603  our own program
        if made.returncode != 0:
            raise InvalidTask(f"adserver dashboard login: {made.stderr.strip()}")
        return made.stdout.strip()

    def log_ends(self, lines: int) -> dict[str, list[str]]:
        """Return the last lines of each server's log."""
        return {one.name: _last_lines(self._log(one), lines) for one in self._servers()}

    def require(self) -> None:
        """Raise HelperUnavailable if a server has ended: by `down`, or with the end of its log."""
        for one in self._servers():
            if self._has_ended(one):
                if (self._project.parties / _STOPPED).exists():
                    raise HelperUnavailable(
                        f"its servers were stopped by `adserver quickstart down {self._project.folder}`: "
                        f"`adserver quickstart run {self._project.folder}` starts them again"
                    )
                raise HelperUnavailable(f"{one.name} has ended: {self._end_of_log(one)}")

    def up(self, *, is_held: bool = False) -> None:
        """Start what does not run, and return once all three answer.

        Args:
            is_held: Whether the servers stay until `down`, also if a run has started them.

        Raises:
            InvalidTask: a package is missing, or one ended before it answered; the message has the end of
                its log.
        """
        require_installed("helper", "adserver")
        with self._alone():
            # Addresses in `lark.toml` may be others than those of `new`, and the folder another
            self._project.write_environment()
            servers = self._servers()
            started = [one for one in servers if self._pid(one) is None]
            if started == [*servers]:
                # Of servers that have ended by themselves
                self._release()
            (self._project.parties / _STOPPED).unlink(missing_ok=True)
            try:
                for one in started:
                    self._start(one)
                # One that runs may have been started by a command that was killed before it answered
                for one in servers:
                    self._await(one)
            # Ctrl-C too: nothing that this call started stays behind. Servers that ran before it are left
            # alone.
            except BaseException:
                self._end(started)
                raise
            if is_held:
                (self._project.parties / _HELD).touch()
        if started:
            self._tell("two helpers and an ad server are running, each with its own folder in parties/")

    def down(self) -> list[str]:
        """Ask the servers to finish what is under way, and return the names of those that have ended.

        Those that another command is starting, too: it is not waited for.
        """
        self._release()
        if self._project.parties.exists():
            (self._project.parties / _STOPPED).touch()
        return self._end(self._servers())

    def down_unless_held(self) -> None:
        """End the servers as `down` does, unless `up` was asked for them."""
        with self._alone():
            if not self.is_held:
                self._end(self._servers())

    def _release(self) -> None:
        (self._project.parties / _HELD).unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for other commands that start servers, and let others wait: two would start each twice."""
        self._project.parties.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._project.parties / _LOCK).open("ab") as lock:

            def is_mine() -> bool:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            if not self._wait(is_mine, _TELL_AFTER_S):
                self._tell("waiting for another command that starts these servers")
                if not self._wait(is_mine, _PATIENCE_S):
                    raise InvalidTask("another command is still starting these servers: end it first")
            yield

    def _end(self, servers: Sequence[Server]) -> list[str]:
        # All are told before one is waited for, so that they end at the same time.
        running = [(one, pid) for one in reversed(servers) if (pid := self._pid(one)) is not None]
        for _, pid in running:
            _tell_to_end(pid, signal.SIGTERM)
        for one, pid in running:
            if not self._wait(partial(self._has_ended, one), _STOP_S):
                _tell_to_end(pid, signal.SIGKILL)
            self._pid_file(one).unlink(missing_ok=True)
        for one in servers:
            # A child that is not waited for stays in the table of processes, as if it ran.
            if (child := self._children.get(one.name)) is not None:
                child.wait()
        return [one.name for one, _ in running]

    def _servers(self) -> tuple[Server, ...]:
        at = self._project.settings.servers
        return (
            *(self._helper(role, listen) for role, listen in enumerate((at.helper_0, at.helper_1))),
            self._adserver(),
        )

    def _helper(self, role: int, listen: str) -> Server:
        name = f"helper-{role}"
        data, ready = self._project.parties / name, self._project.parties / f"{name}.address"
        return Server(
            name=name,
            keygen=("lark-helper", "keygen", "--data", str(data), "--name", f"operator {role}"),
            serve=(
                "lark-helper",
                "serve",
                "--data",
                str(data),
                "--listen",
                listen,
                "--insecure",
                "--port-file",
                str(ready),
                *FLOORS.options,
            ),
            ready=ready,
        )

    def _adserver(self) -> Server:
        at, ready = self._project.settings.servers, self._project.parties / "adserver.addresses"
        listen = ("--grpc-listen", at.adserver_grpc, "--http-listen", at.adserver_http)
        helpers = ("--helper-0", at.helper_0, "--helper-1", at.helper_1, "--insecure")
        data = ("--data", str(self._project.parties / "adserver"))
        return Server(
            name="adserver",
            keygen=(),
            serve=(
                "adserver",
                "serve",
                *data,
                *listen,
                *helpers,
                *self._dashboard(),
                "--addresses-file",
                str(ready),
            ),
            ready=ready,
        )

    def _dashboard(self) -> tuple[str, ...]:
        """Return the option of the dashboard, where one is set and the extra for it is installed."""
        at = self._project.settings.servers.dashboard
        is_there = bool(at) and not [part for part in _DASHBOARD_PARTS if find_spec(part) is None]
        return ("--dashboard-listen", at) if is_there else ()

    def _start(self, server: Server) -> None:
        """Start a server in a new session, so that it outlives this terminal."""
        if server.keygen and not (self._project.parties / server.name).exists():
            program, *arguments = server.keygen
            made = subprocess.run(  # noqa: S603  our own program
                [command(program), *arguments],
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            if made.returncode:
                raise InvalidTask(f"{server.name} did not start: {made.stderr[-2000:].strip()}")
        # An earlier start's file would say that this one answers.
        server.ready.unlink(missing_ok=True)
        program, *arguments = server.serve
        # Appended: the log of a start that failed is what its owner looks for.
        with self._log(server).open("ab") as log:
            self._log_began[server.name] = log.tell()
            child = subprocess.Popen(  # noqa: S603  our own program
                [command(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._children[server.name] = child
        self._pid_file(server).write_text(f"{child.pid}\n")

    def _await(self, server: Server) -> None:
        def is_over() -> bool:
            return server.ready.exists() or self._has_ended(server)

        # Most starts take less, and say nothing.
        if not self._wait(is_over, _TELL_AFTER_S):
            self._tell(_describe_wait(server.name, self._log(server)))
        if not self._wait(is_over, _PATIENCE_S):
            raise HelperUnavailable(f"{server.name} does not answer yet: see its log, {self._log(server)}")
        if not server.ready.exists():
            self._pid_file(server).unlink(missing_ok=True)
            raise InvalidTask(f"{server.name} did not start: {self._end_of_log(server)}")

    def _wait(self, is_over: Callable[[], bool], longest_s: float) -> bool:
        """Wait at most so many seconds; return whether the condition came true."""
        until = time.monotonic() + longest_s
        while not is_over() and time.monotonic() < until:
            time.sleep(_POLL_S)
        # It may have come true in the last sleep.
        return is_over()

    def _has_ended(self, server: Server) -> bool:
        return self._pid(server) is None

    def _pid(self, server: Server) -> int | None:
        """Return a running server's process id; None if another process has that number now."""
        child = self._children.get(server.name)
        if child is not None and child.poll() is None:
            return child.pid  # one that is just starting or ending shows no arguments
        with suppress(OSError, ValueError):
            pid = int(self._pid_file(server).read_text())
            # The number may be another program's by now, but this path is in our arguments alone.
            if str(server.ready) in _arguments(pid):
                return pid
        return None

    def _pid_file(self, server: Server) -> Path:
        return self._project.parties / f"{server.name}.pid"

    def _end_of_log(self, server: Server) -> str:
        """Return the last line of a server's log, and tell the lines before it."""
        # What earlier starts wrote says nothing of this one.
        began = self._log_began.get(server.name, 0)
        said = self._log(server).read_bytes()[began:].decode(errors="replace")[-2000:].strip()
        *before, last = said.splitlines() or [f"its log is empty, {self._log(server)}"]
        # An error is one line
        for line in before[-_LOG_LINES:]:
            self._tell(f"{server.name}: {escape(line)}")
        return last

    def _log(self, server: Server) -> Path:
        return self._project.parties / f"{server.name}.log"


def _describe_wait(name: str, log: Path) -> str:
    """Name what starts, and what keeps it, if the last line of its log says so."""
    is_compiling = any("compiling" in line for line in _last_lines(log, 1))
    why = ", which compiles its loops, once on this machine: up to a minute" if is_compiling else ""
    return f"waiting for {name}{why}"


def _last_lines(log: Path, lines: int) -> list[str]:
    """Return the end of a log; nothing of one that is not there yet."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - lines * _LONGEST_LINE))
            read = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return read[-lines:]


def _tell_to_end(pid: int, how: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, how)


def _arguments(pid: int) -> str:
    """Return the arguments that a process was started with; empty if it does not run."""
    process = Path("/proc") / str(pid)
    if process.parent.joinpath("self").exists():
        return process.joinpath("cmdline").read_text(errors="replace") if process.exists() else ""
    # Where there is no /proc, as on macOS.
    asked = [shutil.which("ps") or "/bin/ps", "-ww", "-p", str(pid), "-o", "args="]
    shown = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603  ps
    return shown.stdout
