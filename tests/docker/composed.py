"""What docker/compose.yaml says of a service, as one command of a container engine that knows no compose.

Everything is taken from the file: image, user, read-only file system, capabilities, temporary file systems,
volumes, variables, entry point and command. Two things differ: there are no networks, so each server has an
address of its own on this machine's loopback interface; and variables may be added, such as a database.

    Composed(project="check").container("helper-0").command(("podman",))
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "docker" / "compose.yaml"
_VARIABLE: Final = re.compile(r"\$\{(\w+):-([^}]*)\}")


def interpolated(text: str) -> str:
    """The text with `${NAME:-default}` as the environment says."""
    return _VARIABLE.sub(lambda match: os.environ.get(match[1]) or match[2], text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A service as a container.

    Attributes:
        name: Of the service.
        label: Of the container.
        service: What compose.yaml says of it.
        address: Its own on the loopback interface.
        hosts: The addresses of all services.
        variables: Beyond those of compose.yaml.
        mounts: Likewise.
    """

    name: str
    label: str
    service: Mapping[str, Any]
    address: str
    hosts: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[str] = ()

    @property
    def image(self) -> str:
        """Its image."""
        return str(self.service["image"])

    @property
    def healthcheck(self) -> list[str]:
        """What tells whether it is well; empty if nothing does."""
        _, *command = self.service.get("healthcheck", {}).get("test", [""])
        return [self._moved(word) for word in command]

    def command(self, engine: tuple[str, ...], *words: str) -> list[str]:
        """What an engine is told to run it; with words, those instead of its own command.

        Args:
            engine: The engine's command and its options for `run`.
            words: A program and its arguments.
        """
        one = self.service
        entry, *before = [words[0]] if words else one.get("entrypoint", [""])
        after = list(words[1:]) or [word.replace("$$", "$") for word in one.get("command", [])]
        variables = {**one.get("environment", {}), **self.variables}
        return [
            *engine,
            *("--rm", "--name", self.label, "--network", "host", "--no-healthcheck"),
            *("--user", one["user"], *(["--read-only"] if one["read_only"] else [])),
            *(f"--cap-drop={capability}" for capability in one["cap_drop"]),
            *(f"--security-opt={option}" for option in one["security_opt"]),
            *(f"--tmpfs={place}" for place in one["tmpfs"]),
            *(f"--volume={mount}" for mount in self._mounts()),
            *(f"--env={name}={self._moved(str(value))}" for name, value in variables.items()),
            *(f"--add-host={name}:{address}" for name, address in self.hosts.items()),
            *(["--entrypoint", entry] if entry else []),
            *(self.image, *before, *after),
        ]

    def _mounts(self) -> Iterator[str]:
        project = self.label.removesuffix(self.name)
        for mount in self.service.get("volumes", []):
            source, rest = mount.split(":", 1)
            yield f"{(FILE.parent / source).resolve() if source.startswith('.') else project + source}:{rest}"
        yield from self.mounts

    def _moved(self, text: str) -> str:
        """A text in which the addresses of all interfaces, and of loopback, are this service's own."""
        return text.replace("0.0.0.0", self.address).replace("127.0.0.1", self.address)  # noqa: S104 # as compose has it


class Composed:
    """The services of docker/compose.yaml.

    Args:
        project: Begins the names of containers and volumes.
        variables: Further variables, by service.
        mounts: Of these services, beyond those of compose.yaml.
    """

    def __init__(
        self,
        *,
        project: str,
        variables: Mapping[str, Mapping[str, str]] | None = None,
        mounts: Sequence[str] = (),
    ) -> None:
        self._project = project
        self._variables = variables or {}
        self._mounts = mounts
        file = yaml.safe_load(FILE.read_text())
        self.services: Mapping[str, Mapping[str, Any]] = file["services"]
        self.volumes = [f"{project}-{name}" for name in file["volumes"]]
        self._hosts = {name: f"127.0.1.{10 + place}" for place, name in enumerate(self.services)}

    def container(self, name: str) -> Container:
        """One service as a container."""
        return Container(
            name=name,
            label=f"{self._project}-{name}",
            service=self.services[name],
            address=self._hosts[name],
            hosts=self._hosts,
            variables=self._variables.get(name, {}),
            mounts=self._mounts if name in self._variables else (),
        )

    def builds(self) -> dict[str, Mapping[str, Any]]:
        """What each image is built of."""
        return {one["image"]: one["build"] for one in self.services.values()}

    def before(self, name: str) -> list[str]:
        """The services on which one depends, each after those on which it depends itself."""
        found: list[str] = []
        for needed in self.services[name].get("depends_on", {}):
            found += [one for one in (*self.before(needed), needed) if one not in found]
        return found
