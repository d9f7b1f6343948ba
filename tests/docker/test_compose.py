"""docker/compose.yaml against the compose specification's schema, and what it promises.

Hardened, apart, with mutual TLS.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import adserver.cli.main
import browser_sim.cli
import helper.cli.main
from tests.bench.load import ALLOCATOR
from tests.docker.composed import Composed

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "tests/vectors/compose/compose_spec.json"
COMPOSE: Mapping[str, Any] = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
SERVICES: Mapping[str, Any] = COMPOSE["services"]
SERVERS = ("helper-0", "helper-1", "adserver")
COMMANDS = {"helper": "lark-helper", "adserver": "adserver", "browser_sim": "browser-sim"}
STAGES = tuple(COMMANDS)
PARTY = {"train-task": "adserver", "train": "adserver", "train-browsers": "browsers"}
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
INSTALL = (ROOT / "docker/install.sh").read_text()


def party_of(service: str) -> str:
    return PARTY.get(service, service.removesuffix("-keygen"))


def built(stage: str) -> str:
    """What the Dockerfile says of the stage in which a party's packages are installed."""
    return DOCKERFILE.split(f"AS {stage}_building\n")[1].split("\nFROM ")[0]


def body(stage: str) -> str:
    return DOCKERFILE.split(f" AS {stage}\n")[1].split("\nFROM ")[0]


def mistakes(composed: Mapping[str, Any]) -> list[str]:
    found = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).iter_errors(composed)
    return [mistake.message for mistake in found]


def test_the_schema_is_the_one_that_its_note_names() -> None:
    assert sha256(SCHEMA.read_bytes()).hexdigest() in SCHEMA.with_name("README.md").read_text()


def test_the_file_keeps_to_the_specification() -> None:
    assert mistakes(COMPOSE) == []


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("read_only", "yes please"), ("depends_on", {"adserver": {"condition": "some day"}}), ("imaginary", 1)],
)
def test_the_schema_would_notice_a_mistake(key: str, wrong: object) -> None:
    changed = {**COMPOSE, "services": {**SERVICES, "adserver": {**SERVICES["adserver"], key: wrong}}}
    assert mistakes(changed)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_runs_as_a_user_on_a_read_only_file_system(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", SERVERS)
def test_every_server_says_whether_it_is_well(name: str) -> None:
    assert "/healthz" in " ".join(SERVICES[name]["healthcheck"]["test"])


def test_helpers_meet_the_ad_server_only() -> None:
    members = {
        network: {party_of(name) for name, one in SERVICES.items() if network in one.get("networks", [])}
        for network in COMPOSE["networks"]
    }
    assert members == {
        "helper-0": {"helper-0", "adserver"},
        "helper-1": {"helper-1", "adserver"},
        "front": {"adserver", "browsers"},
    }
    assert COMPOSE["networks"]["helper-0"]["internal"]
    assert COMPOSE["networks"]["helper-1"]["internal"]
    assert not any("ports" in SERVICES[name] for name in ("helper-0", "helper-1"))


def test_each_party_alone_mounts_its_secrets_and_others_only_read_its_certificate() -> None:
    mounts = [(name, *mount.split(":")) for name, one in SERVICES.items() for mount in one.get("volumes", [])]
    for name, volume, target, *mode in mounts:
        if volume.startswith("./"):
            assert (name, volume, target, mode) == ("browsers", "./tables", "/tables", ["ro"])
            continue
        owner = volume.removesuffix("-data").removesuffix("-public")
        if party_of(name) != owner:
            assert volume.endswith("-public"), f"{name} mounts the secrets of {owner}"
            assert mode == ["ro"]
        if target == "/data":
            assert volume == f"{party_of(name)}-data"


@pytest.mark.parametrize("role", [0, 1])
def test_each_helper_serves_only_together_with_the_other(role: int) -> None:
    keygen, helper = SERVICES[f"helper-{1 - role}-keygen"], SERVICES[f"helper-{role}"]
    assert "> /public/fingerprint" in keygen["command"][0]
    assert f"helper-{1 - role}-public:/peer:ro" in helper["volumes"]
    assert '--peer "$$(cat /peer/fingerprint)"' in helper["command"][0]


@pytest.mark.parametrize("party", ["helper", "adserver"])
def test_the_images_of_both_services_bring_the_postgresql_driver(party: str) -> None:
    assert re.search(rf"{party},postgres\b", built(party))


@pytest.mark.parametrize("stage", STAGES)
def test_an_image_holds_its_partys_packages_and_a_bill_of_them(stage: str) -> None:
    assert f"sh install.sh party {COMMANDS[stage]}" in built(stage)
    assert 'bill_of_materials.py > "$environment/bill-of-materials.cdx.json"' in INSTALL
    others = {f"COPY {other} {other}" for other in STAGES if other != stage}
    assert not any(other in built(stage) for other in others)
    assert "org.opencontainers.image.title" in body(stage)
    assert f"COPY --from={stage}_building /opt/maskedlark /opt/maskedlark" in body(stage)


def test_the_images_say_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"ARG VERSION={project['version']}\n" in DOCKERFILE


def test_compose_gives_every_image_one_base_by_digest() -> None:
    (base,) = {one["build"]["args"]["BASE"] for one in SERVICES.values()}
    tag = re.fullmatch(r"\$\{MASKEDLARK_BASE:-(\S+)@sha256:[0-9a-f]{64}\}", base)
    assert tag is not None
    assert f"ARG BASE={tag[1]}\n" in DOCKERFILE


def test_one_command_trains_after_everything_that_it_needs() -> None:
    assert Composed(project="check").before("train") == [
        "helper-0-keygen",
        "helper-1-keygen",
        "adserver-keygen",
        "helper-0",
        "helper-1",
        "adserver",
        "train-task",
        "train-browsers",
    ]


def test_a_container_is_run_as_compose_says() -> None:
    composed = Composed(
        project="check",
        variables={"helper-1": {"HELPER_DATABASE": "postgresql+psycopg://"}},
        mounts=["/socket:/postgres/socket"],
    )
    container = composed.container("helper-1")
    command = container.command(("engine", "run"))
    assert command[:2] == ["engine", "run"]
    assert "--read-only" in command
    assert command[command.index("--user") + 1] == "10001:10001"
    assert {
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges:true",
        "--volume=check-helper-1-data:/data",
        "--volume=check-helper-0-public:/peer:ro",
        "--volume=/socket:/postgres/socket",
        "--env=HELPER_DATABASE=postgresql+psycopg://",
        f"--env=HELPER_LISTEN={container.address}:8443",
        f"--add-host=helper-1:{container.address}",
    } <= set(command)
    at = command.index("--entrypoint")
    assert command[at + 1 : at + 4] == ["sh", "maskedlark/helper", "-euc"]
    assert command[-1] == 'exec lark-helper serve --peer "$(cat /peer/fingerprint)"'
    assert f"http://{container.address}:9464/healthz" in " ".join(container.healthcheck)
    assert composed.container("browsers").command(("engine",), "id")[-2:] == ["id", "maskedlark/browser-sim"]


def test_the_bill_of_materials_names_every_package_with_its_version() -> None:
    spoken = subprocess.run(
        [sys.executable, ROOT / "docker" / "bill_of_materials.py"], check=True, capture_output=True, text=True
    )
    bill = json.loads(spoken.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/masked-lark@{version('masked-lark')}"
    found = {one["name"]: one for one in bill["components"]}
    assert found["numpy"]["version"] == version("numpy")
    assert found["cryptography"]["licenses"]


def test_no_service_speaks_plaintext() -> None:
    assert "insecure" not in (ROOT / "docker/compose.yaml").read_text().lower()
    for name in SERVERS:
        variables = {variable.split("_", 1)[1] for variable in SERVICES[name]["environment"]}
        assert {"TLS_CERT", "TLS_KEY", "TLS_CA"} <= variables


def test_every_variable_is_one_that_a_command_reads() -> None:
    known = {
        variable
        for commands in (helper.cli.main.COMMANDS, adserver.cli.main.COMMANDS, browser_sim.cli.COMMANDS)
        for command in (lazy.load(name) for name, lazy in commands.items())
        for option in command.params
        for variable in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or [])
    }
    used = {variable for one in SERVICES.values() for variable in one.get("environment", {})}
    assert used <= known
    assert set(re.findall(r"\b((?:HELPER|ADSERVER)_[A-Z_]+)=", DOCKERFILE)) <= known


def test_every_build_names_a_stage_of_the_dockerfile() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE))
    assert {one["build"]["target"] for one in SERVICES.values()} <= stages
    assert all("\nUSER 10001:10001\n" in body(stage) for stage in STAGES)


def test_memory_is_measured_with_the_allocator_settings_of_the_images() -> None:
    assert f"ENV {' '.join(f'{name}={value}' for name, value in ALLOCATOR.items())}\n" in DOCKERFILE
