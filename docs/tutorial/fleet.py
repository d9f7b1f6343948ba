"""Two helpers and an ad server as separate processes on this machine, each with its own data folder.

Loopback demos and tests only.

Everything goes through the three command lines, as an operator would use them.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

ORIGIN: Final = "https://ads.example"
HOST: Final = "localhost"
HELPERS: Final = ("helper-0", "helper-1")
START_S: Final = 600.0
_BIN: Final = Path(sys.executable).parent


class CommandFailed(Exception):
    """A command ended with another status than 0; the message is what it wrote to standard error."""


@dataclass(kw_only=True)
class Fleet:
    """The running parties. Use as a context: leaving it stops every process.

    Attributes:
        folder: Each party's data folder and log lie in here.
        is_no_noise: Start the helpers so that they accept a task without noise.
        is_tls: Mutual TLS between ad server and helpers, with certificates of `keygen`, and TLS for browsers;
            else plaintext.
        helper_options: Further options of `lark-helper serve`.
        helper_options_of: The same, of each helper alone.
        adserver_options: Further options of `adserver serve`.
    """

    folder: Path
    is_no_noise: bool = False
    is_tls: bool = False
    helper_options: tuple[str, ...] = ()
    helper_options_of: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    adserver_options: tuple[str, ...] = ()
    grpc: str = ""
    http: str = ""
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            for role in (0, 1):
                self.run(
                    "lark-helper",
                    "keygen",
                    "--data",
                    str(self.data(HELPERS[role])),
                    "--name",
                    f"operator {role}",
                    "--host",
                    HOST,
                )
            self.run(
                "adserver", "keygen", "--data", str(self.data("adserver")), "--origin", ORIGIN, "--host", HOST
            )
            self._exchange_certificates()
            for role in (0, 1):
                self.start_helper(role)
            self.start_adserver()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def data(self, party: str) -> Path:
        """A party's data folder."""
        return self.folder / party

    def start(self, party: str) -> None:
        """Start a party by its name."""
        self.start_adserver() if party == "adserver" else self.start_helper(HELPERS.index(party))

    def start_helper(self, role: int) -> None:
        """Start a helper, at the address that it had before if it ran before."""
        address_file = self.folder / f"helper-{role}.address"
        listen = address_file.read_text() if address_file.exists() else f"{HOST}:0"
        address_file.unlink(missing_ok=True)
        options = [*self._protection, *(["--allow-no-noise"] if self.is_no_noise else [])]
        options += [*self.helper_options, *self.helper_options_of[role]]
        data = str(self.data(f"helper-{role}"))
        self._start(
            f"helper-{role}",
            "lark-helper",
            "serve",
            "--data",
            data,
            "--listen",
            listen,
            "--port-file",
            str(address_file),
            *options,
        )
        self._await(f"helper-{role}", address_file)

    def start_adserver(self) -> None:
        """Start the ad server, intake and job worker."""
        addresses_file = self.folder / "adserver.addresses"
        addresses_file.unlink(missing_ok=True)
        listen = [
            "--grpc-listen",
            f"{HOST}:0",
            "--http-listen",
            f"{HOST}:0",
            "--addresses-file",
            str(addresses_file),
        ]
        self._start("adserver", "adserver", "serve", *self.common(), *listen, *self.adserver_options)
        self._await("adserver", addresses_file)
        addresses = json.loads(addresses_file.read_text())
        self.grpc, self.http = addresses["grpc"], addresses["http"]

    def adserver(self, *arguments: str, options: bool = True) -> str:
        """Run an `adserver` command that needs the helpers (or, with options=False, only the data folder)."""
        common = self.common() if options else ["--data", str(self.data("adserver"))]
        return self.run("adserver", *arguments, *common)

    def adserver_json(self, *arguments: str, options: bool = True) -> Any:
        """The same with --json, parsed."""
        return json.loads(self.adserver(*arguments, "--json", options=options))

    def browsers(self, *arguments: str) -> Any:
        """Run `browser-sim run` and give its JSON summary."""
        protection = ["--tls-ca", str(self.data("adserver") / "tls.crt")] if self.is_tls else ["--insecure"]
        return json.loads(self.run("browser-sim", "run", *arguments, *protection, "--json"))

    def run(self, program: str, *arguments: str) -> str:
        """Run one command to its end; its progress goes to this terminal, its output is returned.

        Raises:
            CommandFailed: it ended with another status than 0.
        """
        is_shown = sys.stderr.isatty()
        done = subprocess.run(  # noqa: S603 # our own programs
            [str(_BIN / program), *arguments],
            stdout=subprocess.PIPE,
            stderr=None if is_shown else subprocess.PIPE,
            check=False,
        )
        if done.returncode != 0:
            said = "" if is_shown else (done.stderr or b"").decode(errors="replace")
            raise CommandFailed(
                f"{program} {' '.join(arguments[:2])} ended with {done.returncode}: {said.strip()[-2000:]}"
            )
        return done.stdout.decode()

    def start_command(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one command and let it run; its output is dropped."""
        quiet = subprocess.DEVNULL
        return subprocess.Popen([str(_BIN / program), *arguments], stdout=quiet, stderr=quiet)  # noqa: S603 # our own programs

    def pid(self, party: str) -> int:
        """The process id of a running party."""
        return self._processes[party].pid

    def kill(self, party: str) -> None:
        """End a process at once, as a crash would (SIGKILL)."""
        process = self._processes.pop(party)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Ask every process to finish (SIGTERM), and wait."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def log(self, party: str) -> str:
        """What a process wrote to its log."""
        return (self.folder / f"{party}.log").read_text()

    def common(self) -> list[str]:
        """The options by which every `adserver` command finds its data and the helpers."""
        helpers = [(self.folder / f"helper-{role}.address").read_text() for role in (0, 1)]
        return [
            "--data",
            str(self.data("adserver")),
            "--helper-0",
            helpers[0],
            "--helper-1",
            helpers[1],
            *self._protection,
        ]

    @property
    def _protection(self) -> list[str]:
        """The options by which parties protect their connections.

        None are needed for the files that `keygen` made in its folder.
        """
        return [] if self.is_tls else ["--insecure"]

    def _exchange_certificates(self) -> None:
        """What the operators do: each adds the other side's certificate to those that it trusts."""
        shown = {party: (self.data(party) / "tls.crt").read_bytes() for party in (*HELPERS, "adserver")}
        (self.data("adserver") / "trusted.crt").write_bytes(shown[HELPERS[0]] + shown[HELPERS[1]])
        for helper in HELPERS:
            (self.data(helper) / "trusted.crt").write_bytes(shown["adserver"])

    def _start(self, party: str, program: str, *arguments: str) -> None:
        with (self.folder / f"{party}.log").open("ab") as log:
            self._processes[party] = subprocess.Popen(  # noqa: S603 # our own programs
                [*self._program(party, program), *arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def _program(self, party: str, program: str) -> list[str]:
        """What is started for a party; tests may put something around it."""
        return [str(_BIN / program)]

    def _await(self, party: str, ready: Path) -> None:
        deadline = time.monotonic() + START_S
        while not ready.exists():
            if self._processes[party].poll() is not None or time.monotonic() > deadline:
                raise CommandFailed(f"{party} did not start:\n{self.log(party)[-2000:]}")
            time.sleep(0.05)
