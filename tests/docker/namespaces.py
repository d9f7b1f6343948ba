"""Pods of docker/chart in namespaces of this machine, without a cluster: see `tests.docker.pods`.

Each pod has a network of its own, in which the rendered policies hold as packet filters; each container runs
its rendered command as its user on a read-only file system, with the pod's volumes.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.docker.chart import Manifest, containers, pods

HEAD: Final = "maskedlark-helper"
WORKERS: Final = "maskedlark-helper-workers"
ADDRESSES: Final = {HEAD: "10.99.0.1", WORKERS: "10.99.0.2"}
NETWORKS: Final = {HEAD: "lark-head", WORKERS: "lark-worker"}
USER: Final = 10001
_IMAGE: Final = {
    "PATH": "/opt/maskedlark/bin:/usr/local/bin:/usr/bin:/bin",
    "NUMBA_CACHE_DIR": "/opt/maskedlark/numba",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HELPER_LISTEN": "0.0.0.0:8443",
    "RAY_memory_monitor_refresh_ms": "0",
}
"""The image's own variables, of which this machine's memory is not the pod's."""
LONGEST_S: Final = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The pods of a release.

    Attributes:
        objects: All that the chart made.
        root: The files of the image.
        volumes: A folder for each volume of each pod.
        logs: Gets a file for each container.
    """

    objects: Sequence[Manifest]
    root: Path
    volumes: Path
    logs: Path

    def start(self, pod: str, name: str, instead: str = "") -> subprocess.Popen[bytes]:
        """Start a container, or another command in its place; its log is told by `log`."""
        (container,) = (one for one in containers(pods(self.objects)[pod]) if one["name"] == name)
        words = [*container.get("command", ["lark-helper"]), *container.get("args", [])]
        command = ["sh", "-c", instead] if instead else words
        user = container["securityContext"].get("runAsUser", USER)
        inside = ["chroot", f"--userspec={user}:{USER}", f"--groups={USER}", str(self.root), "env", "-i"]
        filled = [one.replace("$(POD_IP)", ADDRESSES[pod]) for one in command]
        run = [
            "ip",
            "netns",
            "exec",
            NETWORKS[pod],
            "unshare",
            "--mount",
            "bash",
            "-c",
            self._mounts(pod, container),
        ]
        with self._log(pod, name, instead).open("wb") as log:
            return subprocess.Popen(
                [*run, "container", *inside, *self._variables(pod, container), *filled],
                stdout=log,
                stderr=log,
            )

    def finish(self, pod: str, name: str, instead: str = "") -> str:
        """Run a container to its end, and give what it printed."""
        status = self.start(pod, name, instead).wait(timeout=LONGEST_S)
        if status:
            raise SystemExit(f"{name} of {pod} ended with {status}:\n{self.log(pod, name, instead)[-4000:]}")
        return self.log(pod, name, instead)

    def log(self, pod: str, name: str, instead: str = "") -> str:
        """What a container printed."""
        return self._log(pod, name, instead).read_text(errors="replace")

    def volume(self, pod: str, name: str) -> Path:
        """The folder of a volume, as Kubernetes gives it to the pod's group."""
        path = self.volumes / pod / name
        if not path.exists():
            path.mkdir(parents=True)
            shutil.chown(path, group=USER)
            path.chmod(0o2777)
        return path

    def _log(self, pod: str, name: str, instead: str) -> Path:
        return self.logs / f"{pod}-{name}{'-instead' if instead else ''}.log"

    def _variables(self, pod: str, container: Manifest) -> list[str]:
        own = {one["name"]: one.get("value", ADDRESSES[pod]) for one in container.get("env", [])}
        return [
            f"{name}={value.replace('$(POD_IP)', ADDRESSES[pod])}"
            for name, value in {**_IMAGE, **own}.items()
        ]

    def _mounts(self, pod: str, container: Manifest) -> str:
        """A script that makes the container's view of the files, and becomes its command."""
        root = self.root
        lines = ["set -eu", "mount --make-rprivate /", f"mount --bind {root} {root}"]
        lines += [f"mkdir -p {root}{one['mountPath']}" for one in container["volumeMounts"]]
        lines += [
            f"printf '127.0.0.1 localhost\\n{ADDRESSES[HEAD]} {HEAD}-ray\\n' > {root}/etc/hosts",
            f"mount -o remount,bind,ro {root}",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
            f"mount --make-rslave {root}/dev",
            f"mount -t tmpfs -o mode=1777,size=64m tmpfs {root / 'dev' / 'shm'}",
        ]
        for one in container["volumeMounts"]:
            place = f"{root}{one['mountPath']}"
            lines.append(f"mount --bind {self.volume(pod, one['name'])} {place}")
            lines += [f"mount -o remount,bind,ro {place}"] if one.get("readOnly") else []
        return "\n".join([*lines, 'exec "$@"'])


def filters(objects: Sequence[Manifest], pod: str) -> str:
    """The policy of a pod as nft takes it: what no rule allows is counted and dropped."""
    templates = pods(objects)
    labels = templates[pod]["metadata"]["labels"]
    (policy,) = (
        one["spec"]
        for one in objects
        if one["kind"] == "NetworkPolicy" and _chosen(one["spec"]["podSelector"], labels)
    )
    lines = ["table inet policies {"]
    for way, chain, side, peers in (
        ("ingress", "input", "saddr", "from"),
        ("egress", "output", "daddr", "to"),
    ):
        lines.append(f"chain {chain} {{ type filter hook {chain} priority 0; policy drop;")
        lines.append(
            f"{'iif' if chain == 'input' else 'oif'} lo accept; ct state established,related accept;"
        )
        lines.append("meta l4proto ipv6-icmp accept;")
        for rule in policy[way]:
            places = [
                ADDRESSES[name]
                for peer in rule.get(peers, [])
                for name, one in templates.items()
                if peer.keys() == {"podSelector"} and _chosen(peer["podSelector"], one["metadata"]["labels"])
            ]
            if peers in rule and not places:
                continue  # whoever is elsewhere
            where = f"ip {side} {{ {', '.join(places)} }}" if places else ""
            lines += [
                f"{where} {one['protocol'].lower()} dport {_ports(one)} accept;" for one in rule["ports"]
            ]
        lines.append("counter; }")
    return "\n".join([*lines, "}\n"])


def _chosen(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return bool(selector["matchLabels"].items() <= labels.items())


def _ports(port: Mapping[str, Any]) -> str:
    number = 8443 if port["port"] == "grpc" else port["port"]
    return f"{number}-{port['endPort']}" if "endPort" in port else str(number)


@contextmanager
def networks(objects: Sequence[Manifest]) -> Iterator[None]:
    """Two networks with a wire between them; leaving it ends whatever runs in them."""
    head, worker = NETWORKS[HEAD], NETWORKS[WORKERS]
    try:
        for name in NETWORKS.values():
            _do("ip", "netns", "add", name)
            _do("ip", "-n", name, "link", "set", "lo", "up")
        _do(*f"ip link add eth0 netns {head} type veth peer name eth0 netns {worker}".split())
        for pod, name in NETWORKS.items():
            _do("ip", "-n", name, "addr", "add", f"{ADDRESSES[pod]}/24", "dev", "eth0")
            _do("ip", "-n", name, "link", "set", "eth0", "up")
            _do("ip", "netns", "exec", name, "nft", "-f", "-", given=filters(objects, pod))
        yield
    finally:
        for name in NETWORKS.values():
            end(name)
            _do("ip", "netns", "delete", name, must=False)


def end(network: str, user: int | None = None) -> None:
    """End all processes of a network, or those of a user."""
    while running := processes(network, user):
        _do("kill", "-KILL", *map(str, running), must=False)
        time.sleep(0.1)


def processes(network: str, user: int | None = None) -> list[int]:
    """The processes in a network, or those of a user."""
    told = _do("ip", "netns", "pids", network, must=False)
    found = [int(one) for one in told.split() if Path(f"/proc/{one}").exists()]
    return [one for one in found if user is None or Path(f"/proc/{one}").stat().st_uid == user]


def dropped(pod: str) -> int:
    """How many packets of a pod no policy allowed."""
    rules = json.loads(_do("ip", "netns", "exec", NETWORKS[pod], "nft", "--json", "list", "ruleset"))[
        "nftables"
    ]
    counters = (
        part["counter"] for one in rules for part in one.get("rule", {}).get("expr", []) if "counter" in part
    )
    return sum(one["packets"] for one in counters)


def _do(*command: str, given: str | None = None, must: bool = True) -> str:
    """What a command printed."""
    return subprocess.run(command, check=must, capture_output=True, text=True, input=given).stdout


def until(holds: Callable[[], bool], within_s: float = LONGEST_S) -> bool:
    """Wait until something holds; whether it does."""
    ends = time.monotonic() + within_s
    while not (is_so := holds()) and time.monotonic() < ends:
        time.sleep(0.5)
    return is_so
