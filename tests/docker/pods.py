"""`make chart-pods`: run a helper of docker/chart, Ray's head and a worker as pods, without a cluster.

Each container runs its rendered command, in the image's files and as its user, and the policies hold as
packet filters (`tests.docker.namespaces`). It needs root on Linux with ip, nft and unshare, and the image's
files in a folder:

    docker export $(docker create maskedlark/helper-ray) | tar --extract --directory FOLDER
    make chart-pods ARGS="--root FOLDER"

It shows that workers join, what does not get in, what Ray's user at the head cannot read, and that the helper
and its workers end with Ray's head. It does not show Kubernetes' own part: the bounds of memory, the order of
starts, probes, names. Prints one JSON object.
"""

import argparse
import json
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from helper.trust.cluster_secrets import write_cluster_secrets, write_machine_certificate
from tests.docker.chart import VERSIONS, rendered
from tests.docker.namespaces import (
    ADDRESSES,
    HEAD,
    NETWORKS,
    USER,
    WORKERS,
    Pods,
    dropped,
    end,
    networks,
    processes,
    until,
)

_CORES: Final = 2
_RAYS_USER: Final = 10002
_REFUSED_S: Final = 60
_GIVEN: Final = (
    "helpers.helper.workers.enabled=true,helpers.helper.workers.secret=cluster,"
    f"helpers.helper.workers.cores={_CORES},helpers.helper.workers.workerBytes=67108864"
)
_HEALTH: Final = (
    "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9464/healthz', timeout=5).read().decode())"
)
_READ: Final = (
    "for one in environ mem maps fd/0 root/data/helper/keys.json; do"
    " head -c 1 /proc/{pid}/$one > /dev/null 2>&1 && echo $one; done;"
    " head -c 1 /data/helper/keys.json /workers/tls.key 2> /dev/null; true"
)
_KNOCK: Final = (
    'python -c "import socket; one = socket.socket(); one.settimeout(5);'
    " print(one.connect_ex(('{address}', 10001)) == 0)\""
)
"""At a port that Ray opens at the head, and the policies do not."""
_READ_OF_ITSELF: Final = "head -c 1 /proc/self/environ > /dev/null && echo environ"


def tried(made: Pods) -> dict[str, Any]:
    """Start the pods, let strangers try to join, and end Ray's head."""
    authority = made.volume(HEAD, "secrets")
    write_cluster_secrets(authority, now=datetime.now(UTC))
    for path in authority.iterdir():
        shutil.chown(path, group=USER)
        path.chmod(0o440)  # as Kubernetes gives a Secret
        shutil.copy2(path, made.volume(WORKERS, "secrets"))
        shutil.chown(made.volume(WORKERS, "secrets") / path.name, group=USER)
    for pod in (HEAD, WORKERS):
        made.finish(pod, "cluster-files")
    made.finish(HEAD, "keys")
    trusted = made.volume(HEAD, "trusted") / "trusted.crt"
    shutil.copy(made.volume(HEAD, "data") / "helper" / "tls.crt", trusted)
    trusted.chmod(0o644)
    made.start(HEAD, "ray")
    if not until(lambda: "Ray runtime started" in made.log(HEAD, "ray")):
        raise SystemExit(made.log(HEAD, "ray")[-4000:])
    helper = made.start(HEAD, "helper")
    if (
        not until(lambda: "serving on" in made.log(HEAD, "helper") or helper.poll() is not None)
        or helper.poll()
    ):
        raise SystemExit(made.log(HEAD, "helper")[-4000:])
    made.start(WORKERS, "worker")
    found: dict[str, Any] = {"joined": joins(made, 0)}
    found["health"] = made.finish(HEAD, "keys", f'python -c "{_HEALTH}"').strip()
    (pid,) = (one for one in processes(NETWORKS[HEAD], USER) if _command(one).endswith("lark-helper serve"))
    found["rays_user_reads"] = made.finish(HEAD, "ray", _READ.format(pid=pid)).split()
    found["rays_user_reads_of_itself"] = made.finish(HEAD, "ray", _READ_OF_ITSELF).split()
    found["refused"] = {name: refused(made, change) for name, change in _strangers(made, authority).items()}
    joined, worker = _joined(made), made.start(WORKERS, "worker")
    found["joined_again"] = joins(made, joined)
    found["dropped_packets"] = {pod: dropped(pod) for pod in NETWORKS}
    knock = _KNOCK.format(address=ADDRESSES[HEAD])
    found["open_at_the_head"] = made.finish(HEAD, "keys", knock).strip()
    found["open_to_workers"] = made.finish(WORKERS, "worker", knock).strip()
    found["dropped_packets_then"] = dropped(WORKERS)
    end(NETWORKS[HEAD], _RAYS_USER)
    until(lambda: helper.poll() is not None and worker.poll() is not None)
    found["ended_with"] = {"helper": helper.poll(), "worker": worker.poll()}
    return found


def joins(made: Pods, before: int) -> int:
    """How many workers of a pod joined beside those before."""
    until(lambda: _joined(made) - before == _CORES)
    return _joined(made) - before


def refused(made: Pods, change: Callable[[], None]) -> str:
    """How a worker whose files are changed is kept out: it ended, or the helper said why, or nothing came."""
    end(NETWORKS[WORKERS])
    kept = {name: made.volume(WORKERS, name) for name in ("cluster", "workers")}
    with TemporaryDirectory() as folder:
        for name, path in kept.items():
            shutil.copytree(path, Path(folder) / name)
        change()
        before, warned = _joined(made), made.log(HEAD, "helper").count("has no certificate of this cluster")
        process = made.start(WORKERS, "worker")
        until(
            lambda: (
                process.poll() is not None
                or made.log(HEAD, "helper").count("has no certificate of this cluster") > warned
                or _joined(made) > before
            ),
            _REFUSED_S,
        )
        told = made.log(HEAD, "helper").count("has no certificate of this cluster") > warned
        status = process.poll()
        end(NETWORKS[WORKERS])
        process.wait()
        for name, path in kept.items():
            for one in (Path(folder) / name).iterdir():
                (path / one.name).write_bytes(one.read_bytes())
    if _joined(made) > before:
        return "joined"
    return "the helper refused it" if told else "not connected" if status is None else f"ended with {status}"


def _strangers(made: Pods, authority: Path) -> Mapping[str, Callable[[], None]]:
    """What a pod may come with that is not the cluster's."""
    cluster, workers = made.volume(WORKERS, "cluster"), made.volume(WORKERS, "workers")

    def certified(by: Path, address: str, *, of: str = "", into: Path = cluster) -> None:
        with TemporaryDirectory() as folder:
            for name in ("ca.crt", "ca.key", "workers-ca.crt", "workers-ca.key"):
                (Path(folder) / name).touch(mode=0o600)
                (Path(folder) / name).write_bytes((by / name).read_bytes())
            write_machine_certificate(
                Path(folder), Path(folder) / "machine", hosts=(address,), now=datetime.now(UTC)
            )
            for path in filter(Path.is_file, (Path(folder) / "machine" / of).iterdir()):
                (into / path.name).write_bytes(path.read_bytes())

    def by_another_authority(of: str, into: Path) -> None:
        with TemporaryDirectory() as folder:
            write_cluster_secrets(Path(folder) / "other", now=datetime.now(UTC))
            certified(Path(folder) / "other", ADDRESSES[WORKERS], of=of, into=into)

    def of_another_token(path: Path) -> None:
        path.write_text(secrets.token_hex(32))

    return {
        "another address": lambda: certified(authority, "10.99.0.77"),
        "another authority": lambda: by_another_authority("", cluster),
        "another token of Ray": lambda: of_another_token(cluster / "ray-token"),
        "another authority of workers": lambda: by_another_authority("workers", workers),
    }


def _joined(made: Pods) -> int:
    return made.log(HEAD, "helper").count(" joined")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def main() -> None:
    """Run the pods; ends with status 1 if something is not as it is to be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True, help="the files of the image helper-ray")
    root = parser.parse_args().root.resolve()
    objects = rendered("one-party", VERSIONS[-1], "--set", _GIVEN)
    with TemporaryDirectory(prefix="maskedlark-pods-") as folder, networks(objects):
        Path(folder).chmod(0o755)
        logs = Path(folder) / "logs"
        logs.mkdir()
        found = tried(Pods(objects=objects, root=root, volumes=Path(folder) / "volumes", logs=logs))
    print(json.dumps(found, indent=1))
    is_right = (
        found["joined"] == found["joined_again"] == _CORES
        and (found["health"], found["rays_user_reads"]) == ("well", [])
        and found["rays_user_reads_of_itself"] == ["environ"]
        and "joined" not in found["refused"].values()
        and not any(found["dropped_packets"].values())
        and (found["open_at_the_head"], found["open_to_workers"]) == ("True", "False")
        and found["dropped_packets_then"]
        and all(found["ended_with"].values())
    )
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
