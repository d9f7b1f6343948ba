"""docker/chart with workers of a Ray cluster: what runs, who reaches whom, and who has which secret."""

import os
import re
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import helper.cli.main
from helper.executors.ray_worker import TLS_VARIABLE
from helper.serving.cluster import check_machine
from helper.trust.cluster_secrets import worker_tls, write_cluster_secrets
from maskedlark.rpc.renewal import certificates_in
from maskedlark.rpc.trust import names_in
from tests.docker.chart import VERSIONS, containers, found_helm, mistakes, pods, rendered, serving

pytestmark = pytest.mark.skipif(found_helm() is None, reason="no helm: `make chart` brings one")
HEAD, WORKERS = "maskedlark-helper", "maskedlark-helper-workers"
ON = ("--set", "helper.workers.enabled=true,helper.workers.secret=cluster")
ON_BOTH = (*ON, "--set", "helpers.helper-1.workers.secret=other")
OFF = ("--set", "helpers.helper.workers.enabled=false")
POD_IP = "10.1.2.3"
SERVICE = (20_000, 20_999)
"""`helper.executors.ray_fleet.PORTS`, which needs Ray."""
Range = tuple[int, int]


@cache
def objects(values: str = "large", *further: str) -> Sequence[Mapping[str, Any]]:
    return rendered(values, VERSIONS[-1], *further)


def container(pod: str, name: str) -> Mapping[str, Any]:
    (found,) = (one for one in containers(pods(objects())[pod]) if one["name"] == name)
    return found


def variables(of: Mapping[str, Any]) -> dict[str, str]:
    """The plain variables of a container, as Kubernetes fills in the pod's address."""
    return {
        one["name"]: POD_IP if one["name"] == "POD_IP" else one["value"].replace("$(POD_IP)", POD_IP)
        for one in of.get("env", [])
        if "value" in one or one["name"] == "POD_IP"
    }


def mounts(of: Mapping[str, Any]) -> set[str]:
    return {one["name"] for one in of["volumeMounts"]}


def options(of: Mapping[str, Any]) -> dict[str, str]:
    """What `ray start` is told."""
    pairs = (one.removeprefix("--").partition("=") for one in of["args"])
    return {name: value for name, _, value in pairs}


def reached(spec: Mapping[str, Any], way: str, by: str) -> set[Range]:
    """Return the ports that a policy opens to, or at, the pods of a set."""
    labels = pods(objects())[by]["metadata"]["labels"]
    return {
        (port["port"], port.get("endPort", port["port"]))
        for rule in spec[way]
        if any(
            one.get("podSelector", {}).get("matchLabels", {"": ""}).items() <= labels.items()
            for one in rule.get("from", rule.get("to", []))
        )
        for port in rule["ports"]
        if port["protocol"] == "TCP" and port["port"] != 53
    }


def policy(of: str) -> Mapping[str, Any]:
    (found,) = (
        one["spec"] for one in objects() if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == of
    )
    return dict(found)


def machine_ports(of: Mapping[str, Any]) -> set[Range]:
    told = options(of)
    return {
        (int(told["node-manager-port"]), int(told["node-manager-port"])),
        (int(told["object-manager-port"]), int(told["object-manager-port"])),
        (int(told["min-worker-port"]), int(told["max-worker-port"])),
    }


@pytest.mark.parametrize(
    ("values", "further", "machines"),
    [("trial", ON_BOTH, 2), ("one-party", ON, 1), ("large", (), 1), ("large", OFF, 0), ("adserver", ON, 0)],
)
def test_workers_are_valid_on_every_version_wherever_there_is_a_helper(
    values: str, further: Sequence[str], machines: int
) -> None:
    made = objects(values, *further)
    assert {version: mistakes(made, version) for version in VERSIONS} == {version: [] for version in VERSIONS}
    assert sum(name.endswith("-workers") for name in pods(made)) == machines


@pytest.mark.parametrize("values", ["one-party", "trial"])
def test_nothing_of_ray_is_there_without_workers(values: str) -> None:
    assert not re.search(r"\bray\b|RAY|shareProcessNamespace", str(objects(values)))


def test_policies_open_the_ports_that_the_commands_name_and_no_others() -> None:
    head, worker = container(HEAD, "ray"), container(WORKERS, "worker")
    gcs = {(int(options(head)["port"]),) * 2}
    ports = machine_ports(worker)
    assert machine_ports(head) == ports
    assert reached(policy(HEAD), "ingress", WORKERS) == gcs | ports
    assert reached(policy(HEAD), "egress", WORKERS) == ports | {SERVICE}
    assert reached(policy(WORKERS), "ingress", HEAD) == ports | {SERVICE}
    assert reached(policy(WORKERS), "ingress", WORKERS) == ports
    assert reached(policy(WORKERS), "egress", HEAD) == gcs | ports
    assert reached(policy(WORKERS), "egress", WORKERS) == ports


def test_workers_reach_nobody_else_and_nobody_else_reaches_them() -> None:
    spec = policy(WORKERS)
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert all("podSelector" in one and len(one) == 1 for rule in spec["ingress"] for one in rule["from"])
    names = [rule for rule in spec["egress"] if any("namespaceSelector" in one for one in rule["to"])]
    assert [[port["port"] for port in rule["ports"]] for rule in names] == [[53, 53]]
    assert not any("ipBlock" in one for rule in spec["egress"] for one in rule["to"])
    for other in objects("trial", *ON_BOTH):
        if other["kind"] == "NetworkPolicy" and other["metadata"]["name"].startswith("maskedlark-helper-0"):
            assert "helper-1" not in str(other["spec"])


def test_every_port_of_ray_is_below_those_that_kernels_give_out() -> None:
    ports = sorted({*machine_ports(container(HEAD, "ray")), (6379, 6379), SERVICE})
    assert all(first <= last < 32_768 for first, last in ports)
    assert all(one[1] < other[0] for one, other in pairwise(ports))


def test_workers_dial_the_name_that_leads_to_the_head_and_its_certificate_has() -> None:
    host, port = options(container(WORKERS, "worker"))["address"].split(":")
    (service,) = (one for one in objects() if one["kind"] == "Service" and one["metadata"]["name"] == host)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= pods(objects())[HEAD]["metadata"]["labels"].items()
    assert port == options(container(HEAD, "ray"))["port"]
    assert host in container(HEAD, "cluster-files")["args"]


def test_the_helper_takes_what_it_is_told_of_the_cluster() -> None:
    given = variables(container(HEAD, "helper"))
    command = helper.cli.main.COMMANDS["serve"].load("serve")
    names = {option.envvar: option.name for option in command.params if option.envvar}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in given.items():
            patched.setenv(name, value)
        taken = command.make_context("serve", []).params
    assert taken["ray"] == f"{POD_IP}:{options(container(HEAD, 'ray'))['port']}"
    assert taken["ray_worker_bytes"] == 1_610_612_736
    assert taken["ray_open_reports"] is False
    assert taken["ray_worker_tls"] == Path("/workers")
    assert {name for name in given if name.startswith("HELPER_")} <= names.keys()
    check_machine(POD_IP, given)


def test_both_ends_of_the_cluster_authenticate_and_encrypt_alike() -> None:
    ends = [container(HEAD, "ray"), container(HEAD, "helper"), container(WORKERS, "worker")]
    told = [
        {name: value for name, value in variables(one).items() if name.startswith("RAY_")} for one in ends
    ]
    assert told[0] == told[1] == told[2]
    for one, of in zip(told, ends, strict=True):
        check_machine(POD_IP, one)
        files = [Path(value) for value in one.values() if value.startswith("/")]
        assert len(files) == 4
        assert {str(path.parent) for path in files} <= {mount["mountPath"] for mount in of["volumeMounts"]}
    assert variables(ends[2])[TLS_VARIABLE] == variables(ends[1])["HELPER_RAY_WORKER_TLS"]


@pytest.mark.long  # CI has Ray for these only
@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra `ray`: make setup-cluster")
@pytest.mark.parametrize(("pod", "name"), [(HEAD, "ray"), (WORKERS, "worker")])
def test_ray_takes_what_it_is_told(pod: str, name: str) -> None:
    parse = (
        "import sys; from ray.scripts.scripts import start;"
        "print(start.make_context('start', sys.argv[1:]).params)"
    )
    words = [one.replace("$(POD_IP)", POD_IP) for one in container(pod, name)["args"]]
    told = subprocess.run(
        [sys.executable, "-c", parse, *words],
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert f"'node_ip_address': '{POD_IP}'" in told
    assert "'block': True" in told
    assert f"'num_cpus': {0 if name == 'ray' else 16}" in told


def test_the_head_of_ray_starts_first_and_reads_no_key_of_the_helper() -> None:
    pod = pods(objects())[HEAD]
    ray, serves = serving(pod)
    assert (ray["name"], ray["restartPolicy"], serves["name"]) == ("ray", "Always", "helper")
    assert pod["spec"]["initContainers"][-1] == ray
    assert ray["securityContext"]["runAsUser"] != pod["spec"]["securityContext"]["runAsUser"]
    assert mounts(ray) == {"cluster", "ray", "shm"}
    assert pod["spec"]["shareProcessNamespace"] is True
    assert options(ray)["num-cpus"] == "0"
    assert options(ray)["include-dashboard"] == "false"


def test_the_authoritys_key_is_in_no_container_that_lasts() -> None:
    for name in (HEAD, WORKERS):
        pod = pods(objects())[name]
        (secret,) = (one for one in pod["spec"]["volumes"] if one["name"] == "secrets")
        assert secret["secret"]["secretName"] == "helper-cluster"
        for one in serving(pod):
            assert not mounts(one) & {"secrets", "authority"}
            assert {m["name"] for m in one["volumeMounts"] if m.get("readOnly")} >= mounts(one) & {
                "cluster",
                "workers",
            }


def test_secrets_lie_in_memory_and_what_ray_writes_does_not() -> None:
    for pod in (HEAD, WORKERS):
        volumes = {one["name"]: one for one in pods(objects())[pod]["spec"]["volumes"]}
        for name in ("authority", "cluster", "workers", "shm"):
            assert volumes[name]["emptyDir"]["medium"] == "Memory"
        assert volumes["ray"]["emptyDir"] == {"sizeLimit": "4Gi"}
        store = next(options(one) for one in serving(pods(objects())[pod]) if one["command"][0] == "sh")
        assert volumes["shm"]["emptyDir"]["sizeLimit"] > int(store["object-store-memory"])


def test_workers_have_neither_keys_nor_ledger_nor_a_service() -> None:
    segments = '{"url": "s3://bucket/prefix", "to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}]}'
    pod = pods(objects("large", "--set-json", f"helpers.helper.segments={segments}"))[WORKERS]
    assert not re.search(r"HELPER_DATA|postgres|s3://|ledger|envFrom|persistentVolumeClaim", str(pod))
    (worker,) = serving(pod)
    assert {name for name in variables(worker) if name.startswith("HELPER_")} == {TLS_VARIABLE}
    assert "ports" not in worker


def test_each_pod_makes_its_own_certificate_and_does_so_again(tmp_path: Path) -> None:
    init = container(HEAD, "cluster-files")
    folders = {mount["mountPath"]: tmp_path / mount["name"] for mount in init["volumeMounts"]}
    write_cluster_secrets(folders["/secrets"], now=datetime.now(UTC))
    for path in folders["/secrets"].iterdir():
        path.chmod(0o440)  # as Kubernetes gives a Secret to a pod's group
    script = init["args"][0]
    for inside, folder in folders.items():
        folder.mkdir(exist_ok=True)
        script = re.sub(rf"(?<![\w/]){inside}(?=[/ ])", str(folder), script)
    words = [one.replace("$(POD_IP)", POD_IP) for one in init["args"][1:]]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    made = []
    for _ in range(2):
        subprocess.run(
            [*init["command"], script, *words],
            env={**os.environ, "PATH": path},
            check=True,
            capture_output=True,
        )
        made.append((folders["/cluster"] / "tls.crt").read_bytes())
    assert made[0] != made[1]
    assert names_in(certificates_in(folders["/cluster"] / "tls.crt")[0]) == {
        POD_IP,
        "maskedlark-helper-ray",
        "localhost",
        "127.0.0.1",
    }
    modes = {stat.S_IMODE(one.stat().st_mode) for one in folders["/cluster"].iterdir()}
    assert modes == {0o640}  # Ray's user at the head is in the group
    assert {one.name for one in folders["/cluster"].iterdir()} == {
        "ca.crt",
        "ray-token",
        "tls.crt",
        "tls.key",
    }
    assert not list(folders["/authority"].iterdir())
    assert worker_tls(folders["/workers"]).read()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("secret=", "workers.secret"),
        ("cores=0", "cores"),
        ("replicas=-1", "replicas"),
        ("workerBytes=0", "workerBytes"),
        ("workerBytes=1Gi", "workerBytes"),
        ("objectStoreBytes=1", "objectStoreBytes"),
        ("disk=much", "disk"),
        ("openReports=perhaps", "openReports"),
        ("dashboard=true", "dashboard"),
        ("ray.cores=2", "ray"),
    ],
)
def test_workers_that_mean_nothing_are_refused_and_named(given: str, told: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered("large", VERSIONS[-1], "--set", f"helpers.helper.workers.{given}")
    assert told in refused.value.stderr


@pytest.mark.parametrize("name", ["helper-workers", "helper-ray"])
def test_a_helper_called_as_another_ones_workers_is_refused(name: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered("large", VERSIONS[-1], "--set", f"helpers.{name}.operator=another")
    assert f"helpers.{name}" in refused.value.stderr
