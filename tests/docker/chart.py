"""`make chart`: render docker/chart with each of its values files, and check every object without a cluster.

Each object is held against Kubernetes' own schemas of four versions, strictly: a field that a version does
not know is a mistake. Then what schemas do not say: whether names that objects call each other by exist, and
whether pods are as hardened as docker/compose.yaml has them. HELM names another helm.

    python -m tests.docker.chart [--json]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import yaml

CHART: Final = Path(__file__).parents[2] / "docker" / "chart"
VALUES: Final = tuple(sorted(path.stem for path in (CHART / "values").glob("*.yaml")))
VERSIONS: Final = ("1.34", "1.35", "1.36", "1.37")
RELEASE: Final = "maskedlark"
NAMESPACE: Final = "lark"
OPERATORS: Final = "monitoring.coreos.com/v1"
"""Objects of the Prometheus operator, whose schemas Kubernetes does not have: see `_monitors`."""
_LONGEST_S: Final = 300
_POD_KINDS: Final = ("StatefulSet", "Deployment")

Manifest = Mapping[str, Any]


def found_helm() -> str | None:
    """The helm to render with: HELM, that of the environment, or the system's."""
    beside = Path(sys.executable).with_name("helm")
    return os.environ.get("HELM") or (str(beside) if beside.exists() else shutil.which("helm"))


def rendered(values: str, version: str, *further: str) -> list[Manifest]:
    """All objects that a values file makes for a Kubernetes version.

    Args:
        values: The file's stem, in the chart's folder `values`.
        version: Of Kubernetes.
        further: More arguments to helm.

    Raises:
        CalledProcessError: the chart refuses the values; `stderr` says why.
    """
    file = CHART / "values" / f"{values}.yaml"
    done = subprocess.run(
        [
            *(found_helm() or "helm", "template", RELEASE, str(CHART), "--namespace", NAMESPACE),
            *("--kube-version", version, "--values", str(file), *further),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
    )
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def mistakes(objects: Sequence[Manifest], version: str) -> list[str]:
    """What Kubernetes' schemas of a version, and the objects among themselves, have against them."""
    found = []
    for one in objects:
        if one["apiVersion"] == OPERATORS:
            continue
        try:
            kubernetes_validate.validate(dict(one), version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            found.append(f"{_name(one)}: {error.message}")
    return found + list(_among(objects))


def pods(objects: Sequence[Manifest]) -> dict[str, Manifest]:
    """The pod templates by the name of their set."""
    return {one["metadata"]["name"]: one["spec"]["template"] for one in objects if one["kind"] in _POD_KINDS}


def containers(pod: Manifest) -> list[Manifest]:
    """All containers of a pod, those that run first included."""
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


def serving(pod: Manifest) -> list[Manifest]:
    """The containers that run as long as the pod does; those that start before the others come first."""
    first = [one for one in pod["spec"]["initContainers"] if one.get("restartPolicy") == "Always"]
    return [*first, *pod["spec"]["containers"]]


def _among(objects: Sequence[Manifest]) -> Iterator[str]:
    """Names that mean nothing, closed ports, pods that no policy covers or that are not hardened."""
    names = [_name(one) for one in objects]
    yield from (f"{name} is there twice" for name in set(names) if names.count(name) > 1)
    templates = pods(objects)
    for name, pod in templates.items():
        labels = pod["metadata"]["labels"]
        for kinds, place in (
            (("NetworkPolicy",), ("podSelector", "matchLabels")),
            (("PodDisruptionBudget",), ("selector", "matchLabels")),
            (_POD_KINDS, ("selector", "matchLabels")),
        ):
            chosen = [
                one
                for one in objects
                if one["kind"] in kinds and _at(one["spec"], place).items() <= labels.items()
            ]
            if len(chosen) != 1:
                yield f"{name} is chosen by {len(chosen)} objects of kind {' or '.join(kinds)}"
        yield from (f"{name}: {what}" for what in _in_pod(pod, names))
    yield from _services(objects, templates)
    yield from _monitors(objects)
    for one in objects:
        if one["kind"] == "NetworkPolicy" and not all(rule.get("to") for rule in one["spec"]["egress"]):
            yield f"{_name(one)} lets its pods call every address"


def _services(objects: Sequence[Manifest], templates: Mapping[str, Manifest]) -> Iterator[str]:
    """Services that lead nowhere, and open ports of pods that no Service leads to."""
    led_to: set[tuple[str, str]] = set()
    for one in objects:
        if one["kind"] == "Service":
            open_ports = {
                (name, port["name"], port["containerPort"])
                for name, pod in templates.items()
                if one["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
                for container in containers(pod)
                for port in container.get("ports", [])
            }
            for port in one["spec"]["ports"]:
                found = {
                    (name, named)
                    for name, named, number in open_ports
                    if port["targetPort"] in {named, number}
                }
                if len(found) != 1:
                    yield f"{_name(one)} leads to {len(found)} open ports {port['targetPort']}"
                led_to |= found
    for name, pod in templates.items():
        named_ports = {port["name"] for one in containers(pod) for port in one.get("ports", [])}
        yield from (
            f"{name}: no Service leads to {port}"
            for port in sorted(named_ports)
            if (name, port) not in led_to
        )


def _monitors(objects: Sequence[Manifest]) -> Iterator[str]:
    """Monitors that choose no Service or more than one, or a port that it has not."""
    services = [one for one in objects if one["kind"] == "Service"]
    for one in objects:
        if one["kind"] == "ServiceMonitor":
            wanted = one["spec"]["selector"]["matchLabels"].items()
            ports = [
                {port["name"] for port in service["spec"]["ports"]}
                for service in services
                if wanted <= service["metadata"]["labels"].items()
            ]
            if ports != [{endpoint["port"] for endpoint in one["spec"]["endpoints"]}]:
                yield f"{_name(one)} leads to {len(ports)} Services, or to other ports than theirs"


def _in_pod(pod: Manifest, names: Sequence[str]) -> Iterator[str]:
    spec = pod["spec"]
    identity = spec["securityContext"]
    if (identity["runAsUser"], identity["runAsNonRoot"], spec["automountServiceAccountToken"]) != (
        10001,
        True,
        False,
    ):
        yield "runs as another user, or holds a token of the cluster"
    if identity.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "may make any system call"
    volumes = {volume["name"] for volume in spec["volumes"]} | {"data"}
    for volume in spec["volumes"]:
        if "configMap" in volume and f"ConfigMap/{volume['configMap']['name']}" not in names:
            yield f"no such ConfigMap: {volume['configMap']['name']}"
    for container in containers(pod):
        hardened = container["securityContext"]
        if (
            hardened.get("readOnlyRootFilesystem") is not True
            or hardened.get("allowPrivilegeEscalation") is not False
            or hardened.get("capabilities") != {"drop": ["ALL"]}
            or hardened.get("runAsUser", 10001) == 0
        ):
            yield f"{container['name']} is not hardened"
        if not {mount["name"] for mount in container["volumeMounts"]} <= volumes:
            yield f"{container['name']} mounts a volume that is not there"
        if not container["resources"].get("limits", {}).get("memory"):
            yield f"{container['name']} has no bound on its memory"
    for container in serving(pod):
        if not {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys():
            yield f"{container['name']} lacks a probe"


def _at(value: Manifest, place: Sequence[str]) -> Manifest:
    for key in place:
        value = value[key]
    return value


def _name(one: Manifest) -> str:
    return f"{one['kind']}/{one['metadata']['name']}"


def main() -> None:
    """Check all values files with all versions; fails if one has mistakes."""
    parser = argparse.ArgumentParser(description="Render and validate docker/chart.")
    parser.add_argument("--json", action="store_true", help="Print JSON only.")
    as_json = parser.parse_args().json
    found: dict[str, dict[str, list[str]]] = {
        values: {version: mistakes(rendered(values, version), version) for version in VERSIONS}
        for values in VALUES
    }
    subprocess.run(
        [found_helm() or "helm", "lint", "--strict", "--quiet", str(CHART)], check=True, stdout=sys.stderr
    )
    counts = {values: len(rendered(values, VERSIONS[-1])) for values in VALUES}
    wrong = [what for by_version in found.values() for these in by_version.values() for what in these]
    if not as_json:
        for values, count in counts.items():
            sys.stderr.write(f"{values}: {count} objects, Kubernetes {', '.join(VERSIONS)}\n")
        sys.stderr.writelines(f"  {what}\n" for what in wrong)
    print(json.dumps({"values": counts, "versions": VERSIONS, "mistakes": found, "valid": not wrong}))
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
