"""docker/chart, rendered by helm where there is one (`make chart` brings it), against Kubernetes' schemas."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import adserver.cli.main
import helper.cli.main
from maskedlark.runtime.key_envelope import keeper_of, read_secret
from maskedlark.runtime.ownership import check_data_folder, check_secret_file
from tests.docker.chart import CHART, VALUES, VERSIONS, containers, found_helm, mistakes, pods, rendered

needs_helm = pytest.mark.skipif(found_helm() is None, reason="no helm: `make chart` brings one")
THERE = '[{"ipBlock": {"cidr": "192.0.2.7/32"}}]'
"""Where a database or a bucket is."""
SECRETS = {"HELPER_DATABASE", "ADSERVER_DATABASE"}
UNKNOWN = {"MPLCONFIGDIR", "POD_IP", "HOME", "TMPDIR", "HELPER_WORKER_TLS"}
"""Variables that no option of ours is."""


@cache
def objects(values: str) -> Sequence[Mapping[str, Any]]:
    return rendered(values, VERSIONS[-1])


def party(container: Mapping[str, Any]) -> str:
    return str(container["image"].split("/")[1].split(":")[0])


def test_there_are_four_values_files_and_four_versions() -> None:
    assert VALUES == ("adserver", "large", "one-party", "trial")
    assert len(VERSIONS) == 4


@needs_helm
@pytest.mark.parametrize("values", VALUES)
def test_every_object_is_valid_on_every_version(values: str) -> None:
    assert {version: mistakes(objects(values), version) for version in VERSIONS} == {
        version: [] for version in VERSIONS
    }


@needs_helm
@pytest.mark.parametrize("version", VERSIONS)
def test_a_field_that_kubernetes_does_not_know_is_a_mistake(version: str) -> None:
    changed = [dict(deepcopy(one)) for one in objects("one-party")]
    for one in changed:
        one["spec" if "spec" in one else "metadata"]["imaginary"] = 1
    assert len(mistakes(changed, version)) == len(changed)


@needs_helm
def test_a_selector_that_chooses_nothing_is_a_mistake() -> None:
    changed = [dict(deepcopy(one)) for one in objects("one-party")]
    (policy,) = (one for one in changed if one["kind"] == "NetworkPolicy")
    policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] = "nobody"
    assert mistakes(changed, VERSIONS[-1]) == [
        "maskedlark-helper is chosen by 0 objects of kind NetworkPolicy"
    ]


@needs_helm
def test_a_container_that_may_write_to_its_image_is_a_mistake() -> None:
    changed = [dict(deepcopy(one)) for one in objects("one-party")]
    for pod in pods(changed).values():
        pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = False
    assert mistakes(changed, VERSIONS[-1]) == ["maskedlark-helper: helper is not hardened"]


@needs_helm
@pytest.mark.parametrize("values", VALUES)
def test_every_variable_of_the_chart_is_one_that_a_command_reads(values: str) -> None:
    commands = {"helper": helper.cli.main.COMMANDS, "adserver": adserver.cli.main.COMMANDS}
    known = {
        variable
        for of_party in commands.values()
        for command in (lazy.load(name) for name, lazy in of_party.items())
        for option in command.params
        for variable in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or [])
    }
    for pod in pods(objects(values)).values():
        for container in containers(pod):
            variables = {
                one["name"] for one in container.get("env", []) if not one["name"].startswith("RAY_")
            }
            assert variables - UNKNOWN <= known
            assert all("valueFrom" in one for one in container.get("env", []) if one["name"] in SECRETS)


@needs_helm
@pytest.mark.parametrize("values", VALUES)
def test_each_server_is_told_the_three_files_of_its_tls(values: str) -> None:
    for pod in pods(objects(values)).values():
        for container in pod["spec"]["containers"]:
            if container.get("args") == ["serve"]:
                told = {one["name"].partition("_")[2]: one.get("value") for one in container["env"]}
                folders = {mount["mountPath"] for mount in container["volumeMounts"]}
                files = {name: Path(told[f"TLS_{name}"]) for name in ("CERT", "KEY", "CA")}
                assert files["CERT"] == Path(told["DATA"]) / "tls.crt"  # where keygen puts them
                assert files["KEY"] == Path(told["DATA"]) / "tls.key"
                assert str(files["CA"].parent) in folders


@needs_helm
def test_a_trial_has_both_helpers_and_an_ad_server_that_alone_reaches_them() -> None:
    made = objects("trial")
    assert [party(pod["spec"]["containers"][0]) for pod in pods(made).values()] == [
        "adserver",
        "helper",
        "helper",
    ]
    policies = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "NetworkPolicy"}
    for role in (0, 1):
        (way_in,) = policies[f"maskedlark-helper-{role}"]["ingress"]
        (caller,) = way_in["from"]
        assert caller["podSelector"]["matchLabels"] == {
            "app.kubernetes.io/name": "maskedlark-adserver",
            "app.kubernetes.io/instance": "maskedlark-adserver",
        }
        assert all(
            port["port"] == 53
            for way_out in policies[f"maskedlark-helper-{role}"]["egress"]
            for port in way_out["ports"]
        )


@needs_helm
def test_intake_replicas_keep_nothing_and_call_nobody_but_the_database() -> None:
    made = objects("adserver")
    (deployment,) = (one for one in made if one["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert (deployment["spec"]["replicas"], pod["containers"][0]["args"]) == (3, ["intake"])
    assert {kind for volume in pod["volumes"] for kind in volume} == {"name", "secret", "emptyDir"}
    (policy,) = (
        one["spec"]
        for one in made
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "maskedlark-intake"
    )
    assert {port["port"] for way_out in policy["egress"] for port in way_out["ports"]} == {53, 5432}


@needs_helm
@pytest.mark.parametrize("missing", ["tlsSecret", "database.secret"])
def test_intake_replicas_without_a_certificate_or_a_database_are_refused(missing: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered("adserver", VERSIONS[-1], "--set", f"intake.{missing}=")
    assert f"intake.{missing}" in refused.value.stderr


@needs_helm
def test_a_helper_with_object_storage_has_its_url_credentials_and_way_out() -> None:
    given = f'{{"url": "s3://bucket/prefix", "secret": "bucket", "port": 9000, "to": {THERE}}}'
    made = rendered("one-party", VERSIONS[-1], "--set-json", f"helpers.helper.segments={given}")
    assert not mistakes(made, VERSIONS[-1])
    (pod,) = pods(made).values()
    (serving,) = pod["spec"]["containers"]
    assert {"name": "HELPER_SEGMENTS", "value": "s3://bucket/prefix"} in serving["env"]
    assert serving["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert "bucket" not in str(pod["spec"]["initContainers"])
    (policy,) = (one["spec"] for one in made if one["kind"] == "NetworkPolicy")
    assert {port["port"] for way_out in policy["egress"] for port in way_out["ports"]} == {53, 9000}


@needs_helm
def test_reports_in_object_storage_have_their_url_credentials_and_way_out() -> None:
    given = [
        word
        for of in ("adserver", "intake")
        for word in (
            "--set-json",
            f'{of}.reportObjects={{"url": "s3://reports/x", "secret": "{of}-bucket", "port": 9000,'
            f' "to": {THERE}}}',
        )
    ]
    made = rendered("adserver", VERSIONS[-1], *given)
    assert not mistakes(made, VERSIONS[-1])
    policies = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "NetworkPolicy"}
    for of, others in (("adserver", {53, 5432, 8443}), ("intake", {53, 5432})):
        pod = pods(made)[f"maskedlark-{of}"]
        (serving,) = pod["spec"]["containers"]
        assert {"name": "ADSERVER_REPORT_OBJECTS", "value": "s3://reports/x"} in serving["env"]
        assert serving["envFrom"] == [{"secretRef": {"name": f"{of}-bucket"}}]
        assert "bucket" not in str(pod["spec"]["initContainers"])
        ways_out = policies[f"maskedlark-{of}"]["egress"]
        assert {port["port"] for way_out in ways_out for port in way_out["ports"]} == others | {9000}


@needs_helm
@pytest.mark.parametrize("values", VALUES)
def test_each_serving_command_takes_the_variables_that_it_is_told(values: str) -> None:
    commands = {"helper": helper.cli.main.COMMANDS, "adserver": adserver.cli.main.COMMANDS}
    for pod in pods(objects(values)).values():
        (container,) = pod["spec"]["containers"]
        if not container.get("args") or "command" in container:
            continue  # Ray's
        (name,) = container["args"]
        command = commands[party(container).removesuffix("-ray")][name].load(name)
        with pytest.MonkeyPatch.context() as patched:
            for one in container["env"]:
                value = one.get("value", "postgresql+psycopg://db/x").replace("$(POD_IP)", "10.1.2.3")
                patched.setenv(one["name"], value)
            taken = command.make_context(name, []).params
        told = {one["name"] for one in container["env"]}
        by_variable = {str(option.envvar): taken[str(option.name)] for option in command.params}
        assert by_variable.keys() & told
        assert all(by_variable[one] is not None for one in by_variable.keys() & told)


@needs_helm
@pytest.mark.parametrize("values", VALUES)
def test_every_way_out_of_a_pod_names_its_peers(values: str) -> None:
    """A port alone is open to every address: through it a pod that is taken over sends shares anywhere."""
    for one in objects(values):
        if one["kind"] == "NetworkPolicy":
            assert all(rule["to"] for rule in one["spec"]["egress"])
            assert not any(
                peer == {"ipBlock": {"cidr": "0.0.0.0/0"}}
                for rule in one["spec"]["egress"]
                for peer in rule["to"]
            )


@needs_helm
def test_a_way_out_without_peers_is_a_mistake() -> None:
    changed = [dict(deepcopy(one)) for one in objects("one-party")]
    (policy,) = (one for one in changed if one["kind"] == "NetworkPolicy")
    del policy["spec"]["egress"][0]["to"]
    assert mistakes(changed, VERSIONS[-1]) == [
        "NetworkPolicy/maskedlark-helper lets its pods call every address"
    ]


@needs_helm
def test_an_ad_server_calls_the_helpers_of_its_release_or_those_that_are_named() -> None:
    (policy,) = (
        one["spec"]
        for one in objects("trial")
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "maskedlark-adserver"
    )
    chosen = [peer["podSelector"]["matchLabels"] for peer in policy["egress"][-1]["to"]]
    assert [one["app.kubernetes.io/instance"] for one in chosen] == [
        f"maskedlark-helper-{role}" for role in (0, 1)
    ]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered("adserver", VERSIONS[-1], "--set-json", "adserver.toHelpers=[]")
    assert "adserver.toHelpers: expected at least one peer" in refused.value.stderr


@needs_helm
@pytest.mark.parametrize("values", VALUES)
def test_a_service_that_is_reached_from_outside_keeps_the_addresses_of_its_callers(values: str) -> None:
    """Else each caller has the address of a node: the intake's quota for each address is one for all."""
    for one in objects(values):
        if one["kind"] == "Service":
            outside = one["spec"].get("type", "ClusterIP") != "ClusterIP"
            assert one["spec"].get("externalTrafficPolicy") == ("Local" if outside else None)


@needs_helm
def test_an_image_that_its_tag_may_change_is_looked_up_each_time() -> None:
    digest = f"image.tag=sha256:{'0' * 64}"
    for further, policy in ((), "Always"), (("--set", digest), "IfNotPresent"):
        made = rendered("one-party", VERSIONS[-1], *further)
        assert {one["imagePullPolicy"] for pod in pods(made).values() for one in containers(pod)} == {policy}


@needs_helm
def test_a_helper_that_nobody_may_call_is_called_by_nobody() -> None:
    made = rendered("one-party", VERSIONS[-1], "--set-json", "helpers.helper.from=[]")
    (policy,) = (one for one in made if one["kind"] == "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert not policy["spec"]["ingress"]


@needs_helm
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("helpers.helper.env.LD_PRELOAD=x", "LD_PRELOAD"),
        ("helpers.helper.env.HELPER_DATABASE=postgresql://u:p@h/x", "HELPER_DATABASE"),
        ("helper.env.HELPER_DATA=/x", "HELPER_DATA"),
        ("adserver.env.ADSERVER_TLS_KEY=/x", "ADSERVER_TLS_KEY"),
        ("helpers.helper.operator=", "how tasks name the helper"),
        ("helpers.helper.peers={north}", "peers"),
        ("helpers.helper.storage.size=much", "size"),
        ("helpers.helper.secret=x", "secret"),
        ("helpers.helper.segments.url=ftp://host", "url"),
        ("adserver.reportObjects.url=ftp://host", "url"),
        ("intake.reportObjects.bucket=x", "bucket"),
        ("helpers.Helper.operator=x", "Helper"),
        ("adserver.enabled=true", "adserver.helper0"),
        ("adserver.origin=http://ads.example", "origin"),
        ("helpers.adserver.operator=x", "adserver"),
        ("helpers.intake.operator=x", "intake"),
        ("helper.env.HELPER_SEGMENTS=s3://bucket", "HELPER_SEGMENTS"),
        ("helpers.helper.env.HELPER_RAY_WORKER_TLS=/x", "HELPER_RAY_WORKER_TLS"),
        ("adserver.env.ADSERVER_REPORT_OBJECTS=s3://bucket", "ADSERVER_REPORT_OBJECTS"),
        ("intake.env.ADSERVER_DATABASE=postgresql://u:p@h/x", "ADSERVER_DATABASE"),
        ("intake.env.HELPER_PEERS=x", "HELPER_PEERS"),
        ("helpers.helper.database.secret=x", "helpers.helper.database.to: expected at least one peer"),
        ("helpers.helper.segments.url=s3://x", "helpers.helper.segments.to: expected at least one peer"),
        ("helpers.helper.from[0].address=x", "address"),
        ("helpers.helper.service.externalTrafficPolicy=Global", "externalTrafficPolicy"),
    ],
)
def test_values_that_mean_nothing_are_refused_and_named(given: str, told: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered("one-party", VERSIONS[-1], "--set", given)
    assert told in refused.value.stderr


def settable(of: str) -> dict[str, Any]:
    """How the values of a party name the variables that its `env` may set."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    return dict(schema["definitions"][of]["properties"]["env"]["propertyNames"])


@needs_helm
@pytest.mark.parametrize(
    ("values", "pod", "of", "given"),
    [
        ("trial", "helper-0", "helper", ["database.secret=x", "segments.url=s3://x", f"peers={{{0:064}}}",
                                         "workers.enabled=true", "workers.secret=x"]),
        ("adserver", "adserver", "adserver", ["reportObjects.url=s3://x", "dashboard.enabled=true",
                                              *(f"dashboard.oidc.{one}=x" for one in
                                                ("secret", "clientId", "groupsClaim", "audience")),
                                              "dashboard.oidc.issuer=https://x",
                                              "dashboard.oidc.groups.x=read"]),
        ("adserver", "intake", "intake", ["reportObjects.url=s3://x"]),
    ],
)  # fmt: skip
def test_what_the_chart_sets_may_not_be_set_in_env(
    values: str, pod: str, of: str, given: Sequence[str]
) -> None:
    place = f"helpers.{pod}" if of == "helper" else of
    there = [
        f"{place}.{one}.to={THERE}"
        for one in ("database", "segments", "reportObjects", "dashboard.oidc")
        if one in str(given)
    ]
    made = rendered(
        values,
        VERSIONS[-1],
        *("--set", ",".join(f"{place}.{one}" for one in given)),
        *(word for one in there for word in ("--set-json", one)),
    )
    told = {one["name"] for one in pods(made)[f"maskedlark-{pod}"]["spec"]["containers"][0]["env"]}
    may = settable(of)
    ours = {one for one in told if re.match(may["pattern"], one) and not one.endswith("_LOG_FORMAT")}
    assert ours == set(may["not"]["enum"])


@needs_helm
@pytest.mark.parametrize("values", VALUES)
def test_no_variable_is_told_twice_and_a_format_of_logs_may_be_given(values: str) -> None:
    given = "helper.env.HELPER_LOG_FORMAT=text,adserver.env.ADSERVER_LOG_FORMAT=text"
    made = rendered(values, VERSIONS[-1], "--set", f"{given},intake.env.ADSERVER_LOG_FORMAT=text")
    for pod in pods(made).values():
        for container in containers(pod):
            names = [one["name"] for one in container.get("env", [])]
            assert len(names) == len(set(names))
            for one in container.get("env", []):
                assert not one["name"].endswith("_LOG_FORMAT") or one["value"] == "text"


@needs_helm
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("workers.enabled=true,helper.workers.secret=x", "workers.secret"),
        ("keysSecret=x", "keysSecret"),
        ("database.secret=x", "database.secret"),
    ],
)
def test_two_helpers_that_share_a_secret_are_refused_and_named(given: str, what: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered(
            "trial", VERSIONS[-1], "--set", f"helper.{given}", "--set-json", f"helper.database.to={THERE}"
        )
    assert f"helpers.helper-1.{what} is that of helpers.helper-0" in refused.value.stderr


@needs_helm
def test_two_helpers_may_have_two_keys_of_one_secret_for_their_databases() -> None:
    given = ",".join(f"helpers.helper-{role}.database.key=url{role}" for role in (0, 1))
    there = ("--set-json", f"helper.database.to={THERE}")
    made = rendered("trial", VERSIONS[-1], "--set", f"helper.database.secret=x,{given}", *there)
    assert not mistakes(made, VERSIONS[-1])


@needs_helm
def test_an_image_is_named_by_its_tag_or_digest() -> None:
    digest = f"sha256:{'0' * 64}"
    made = rendered(
        "one-party", VERSIONS[-1], "--set", f"image.tag={digest},image.registry=registry.example/lark"
    )
    for pod in pods(made).values():
        assert {one["image"] for one in containers(pod)} == {f"registry.example/lark/helper@{digest}"}


@needs_helm
def test_keys_are_made_once_and_an_attempt_that_was_cut_short_is_begun_anew(tmp_path: Path) -> None:
    for name, pod in pods(objects("trial")).items():
        (init,) = pod["spec"]["initContainers"]
        (variable,) = (one["name"] for one in init["env"] if one["name"].endswith("_DATA"))
        data = tmp_path / name
        (tmp_path / f"{name}.new").mkdir()
        (tmp_path / f"{name}.new" / "tls.key").write_bytes(b"half")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        command = [*init["command"], *init["args"]]
        told = [
            subprocess.run(
                command,
                env={**os.environ, "PATH": path, variable: str(data)},
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for _ in range(2)
        ]
        assert told[0] == told[1]
        assert (data / "tls.crt").read_text() in told[0]
        assert ("fingerprint" in told[0]) is (variable == "HELPER_DATA")
        check_data_folder(data)
        check_secret_file(data / "tls.key")


def test_every_value_is_described_to_helm() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["additionalProperties"] is False
    assert all(one["additionalProperties"] is False for one in schema["definitions"].values())


KEEPER = {
    "with": "pkcs11:token=lark;object=kek",
    "module": "/usr/lib/softhsm/libsofthsm2.so",
    "pinSecret": "token-pin",
    "secret": "token-settings",
    "env": {"SOFTHSM2_CONF": "/etc/softhsm2.conf"},
    "port": 1792,
    "to": json.loads(THERE),
}
DASHBOARD = {
    "enabled": True,
    "hosts": ["ads.example"],
    "from": json.loads(THERE),
    "oidc": {
        "issuer": "https://id.example/realms/ads",
        "clientId": "masked-lark",
        "secret": "provider",
        "groups": {"ml-readers": "read", "ml-owners": "tokens"},
        "ca": "PEM",
        "port": 8444,
        "to": json.loads(THERE),
    },
}


def given(**values: object) -> list[str]:
    return [
        word
        for place, value in values.items()
        for word in ("--set-json", f"{place.replace('__', '.')}={json.dumps(value)}")
    ]


@needs_helm
@pytest.mark.parametrize(("values", "place"), [("one-party", "helpers.helper"), ("adserver", "adserver")])
def test_what_wraps_the_keys_is_told_to_both_containers_and_its_pin_to_the_pods_user_alone(
    values: str, place: str
) -> None:
    made = rendered(values, VERSIONS[-1], "--set-json", f"{place}.keeper={json.dumps(KEEPER)}")
    assert not mistakes(made, VERSIONS[-1])
    [pod] = [pod for name, pod in pods(made).items() if not name.endswith("-intake")]
    for container in containers(pod):
        told = {one["name"]: one.get("value") for one in container["env"]}
        assert told["MASKEDLARK_PKCS11_MODULE"] == KEEPER["module"]
        assert told["MASKEDLARK_PKCS11_PIN_FILE"] == "/private/pin"
        assert told["SOFTHSM2_CONF"] == "/etc/softhsm2.conf"
        assert {"secretRef": {"name": "token-settings"}} in container["envFrom"]
    (init,), (serving,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert {"name": "private", "mountPath": "/private", "readOnly": True} in serving["volumeMounts"]
    assert "given-pin" in str(init["volumeMounts"])
    assert "given-pin" not in str(serving["volumeMounts"])
    volumes = {one.pop("name"): one for one in deepcopy(pod["spec"]["volumes"])}
    assert volumes["given-pin"]["secret"]["secretName"] == "token-pin"
    assert volumes["private"]["emptyDir"]["medium"] == "Memory"
    policies = [one["spec"]["egress"] for one in made if one["kind"] == "NetworkPolicy"]
    assert (
        sum(1792 in {port["port"] for rule in egress for port in rule["ports"]} for egress in policies) == 1
    )


@needs_helm
@pytest.mark.parametrize("name", ["maskedlark-helper-0", "maskedlark-adserver"])
def test_keys_that_are_wrapped_never_lie_on_the_volume_in_plaintext(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "kms"
    program.write_text("#!/bin/sh\necho $1 >> $0.calls\ntr '\\000-\\377' '\\200-\\377\\000-\\177'\n")
    program.chmod(0o700)
    keeper = {"with": "command", "program": str(program)}
    values = given(helper__keeper=keeper, adserver__keeper=keeper, adserver__dashboard=DASHBOARD)
    made = rendered("trial", VERSIONS[-1], *values)
    (init,) = pods(made)[name]["spec"]["initContainers"]
    (variable,) = (one["name"] for one in init["env"] if one["name"].endswith("_DATA"))
    in_memory, volume = tmp_path / "memory", tmp_path / "volume"
    volume.mkdir()
    private, secret = tmp_path / "private", tmp_path / "given" / "client-secret" / "client-secret"
    private.mkdir()
    secret.parent.mkdir(parents=True)
    secret.touch(mode=0o440)  # as a pod's group may read it
    own = {"/tmp/new": in_memory, "/private/": f"{private}/", "/given/": f"{tmp_path}/given/"}  # noqa: S108  a pod's
    command = [*init["command"], *init["args"]]
    for path, here in own.items():
        command = [word.replace(path, str(here)) for word in command]
    assert str(in_memory) in str(command)
    for one in init["env"]:
        monkeypatch.setenv(one["name"], one["value"])
    monkeypatch.setenv(variable, str(volume / "party"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    told = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2)]
    assert told[0] == told[1]
    assert not in_memory.exists()
    for one in private.iterdir():
        check_secret_file(one)
    assert [one.name for one in private.iterdir()] == ["client-secret"] * name.endswith("adserver")
    secrets = [one for one in ("keys.json", "tls.key") if (volume / "party" / one).exists()]
    assert len(secrets) == (2 if variable == "HELPER_DATA" else 1)
    for one in secrets:
        check_secret_file(volume / "party" / one)
        assert keeper_of(volume / "party" / one) == "command"
        assert b"key" in read_secret(volume / "party" / one).lower()


@needs_helm
def test_a_dashboard_with_sign_in_has_a_service_of_its_own_and_a_way_to_the_provider() -> None:
    made = rendered("adserver", VERSIONS[-1], *given(adserver__dashboard=DASHBOARD))
    assert not mistakes(made, VERSIONS[-1])
    pod = pods(made)["maskedlark-adserver"]
    (serving,) = pod["spec"]["containers"]
    told = {one["name"]: one.get("value") for one in serving["env"]}
    assert told["ADSERVER_DASHBOARD_HOST"] == "ads.example maskedlark-adserver-dashboard"
    assert told["ADSERVER_OIDC_GROUP"] == "ml-owners=tokens ml-readers=read"
    assert told["ADSERVER_OIDC_CLIENT_SECRET_FILE"] == "/private/client-secret"  # noqa: S105  a path
    assert told["SSL_CERT_FILE"] == "/trusted/provider.crt"
    names = {one["name"] for one in serving["env"] if one["name"].startswith("ADSERVER_")}
    command = adserver.cli.main.COMMANDS["serve"].load("serve")
    with pytest.MonkeyPatch.context() as patched:
        for one in serving["env"]:
            patched.setenv(one["name"], one.get("value", "postgresql+psycopg://db/x"))
        taken = command.make_context("serve", []).params
    assert taken["oidc_group"] == ["ml-owners=tokens", "ml-readers=read"]
    assert len(taken["dashboard_host"]) == 2
    assert names <= {str(option.envvar) for option in command.params}
    services = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "Service"}
    assert "dashboard" not in str(services["maskedlark-adserver"])
    assert services["maskedlark-adserver-dashboard"]["type"] == "ClusterIP"
    (policy,) = (
        one["spec"]
        for one in made
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "maskedlark-adserver"
    )
    (way_in,) = (
        rule for rule in policy["ingress"] if {"port": "dashboard", "protocol": "TCP"} in rule["ports"]
    )
    assert way_in["from"] == json.loads(THERE)
    assert 8444 in {port["port"] for rule in policy["egress"] for port in rule["ports"]}


WITHOUT = {
    "helpers.helper.keeper": KEEPER,
    "adserver.keeper": {"with": "command", "program": "/opt/kms"},
    "adserver.dashboard.oidc": DASHBOARD["oidc"],
}


@needs_helm
@pytest.mark.parametrize(
    ("place", "missing"),
    [
        *[("helpers.helper.keeper", one) for one in ("module", "pinSecret")],
        ("adserver.keeper", "program"),
        *[("adserver.dashboard.oidc", one) for one in ("clientId", "groups", "to")],
    ],
)
def test_half_a_keeper_and_half_a_provider_are_refused(place: str, missing: str) -> None:
    values = "one-party" if place.startswith("helpers") else "adserver"
    settings = {key: value for key, value in dict(WITHOUT[place]).items() if key != missing}
    words = ["--set-json", f"{place}={json.dumps(settings)}", "--set", "adserver.dashboard.enabled=true"]
    if values == "one-party":
        words = words[:2]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered(values, VERSIONS[-1], *words)
    assert f"{place}.{missing}" in refused.value.stderr


@needs_helm
def test_two_helpers_of_one_release_have_tokens_of_their_own() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered("trial", VERSIONS[-1], *given(helper__keeper=KEEPER))
    assert "keeper.pinSecret" in refused.value.stderr


METRICS = (
    *("--set", "metrics.enabled=true,metrics.serviceMonitor.enabled=true,metrics.dashboards.enabled=true"),
    *("--set", "metrics.rules.enabled=true,metrics.rules.symptoms=https://wiki.example/symptoms.html"),
    *("--set-json", f"metrics.from={THERE}"),
)


@needs_helm
@pytest.mark.parametrize("is_tls", [False, True], ids=["plaintext", "tls"])
@pytest.mark.parametrize("values", ["trial", "adserver"])
def test_metrics_leave_a_pod_by_a_port_of_their_own_that_named_peers_alone_reach(
    values: str, *, is_tls: bool
) -> None:
    made = rendered(values, VERSIONS[-1], *METRICS, "--set", f"metrics.tls={str(is_tls).lower()}")
    assert not mistakes(made, VERSIONS[-1])
    of_kind = {kind: [one for one in made if one["kind"] == kind] for kind in {one["kind"] for one in made}}
    assert len(of_kind["ServiceMonitor"]) == len(pods(made))
    for policy in of_kind["NetworkPolicy"]:
        ways_in = policy["spec"]["ingress"]
        [way_in] = [rule for rule in ways_in if {"port": "metrics", "protocol": "TCP"} in rule["ports"]]
        assert way_in["from"] == json.loads(THERE)
        assert len(way_in["ports"]) == 1
    for service in of_kind["Service"]:
        is_open = any(port["name"] == "metrics" for port in service["spec"]["ports"])
        assert is_open is (service["spec"].get("clusterIP") == "None")  # a party's own may be on the internet
    for pod in pods(made).values():
        [container] = [one for one in containers(pod) if one["name"] in ("helper", "adserver", "intake")]
        told = {one["name"].partition("_")[2]: one.get("value") for one in container["env"]}
        assert told["METRICS_LISTEN"] == "0.0.0.0:9464"
        assert told["METRICS_ACCESS"] == ("tls" if is_tls else "plaintext")
        for probe in ("startupProbe", "readinessProbe"):
            program = container[probe]["exec"]["command"][-1]
            compile(program, probe, "exec")
            assert f"http{'s' * is_tls}://127.0.0.1:9464/healthz" in program
    [rule_object] = of_kind["PrometheusRule"]
    for rule in rule_object["spec"]["groups"][0]["rules"]:
        assert (
            rule["annotations"]["runbook_url"]
            == f"https://wiki.example/symptoms.html#{rule['alert'].lower()}"
        )
        assert "Helm" not in rule["annotations"]["summary"]
    [dashboards] = [one for one in of_kind["ConfigMap"] if one["metadata"]["name"].endswith("-dashboards")]
    assert all(json.loads(one)["panels"] for one in dashboards["data"].values())


@needs_helm
def test_without_a_word_metrics_stay_on_loopback() -> None:
    made = objects("trial")
    assert not [one for one in made if one["kind"] in ("ServiceMonitor", "PrometheusRule")]
    for pod in pods(made).values():
        for container in pod["spec"]["containers"]:
            told = {one["name"].partition("_")[2]: one.get("value") for one in container["env"]}
            assert told["METRICS_LISTEN"] == "127.0.0.1:9464"
            assert told["METRICS_ACCESS"] == "loopback"
            assert "metrics" not in {port["name"] for port in container["ports"]}


@needs_helm
@pytest.mark.parametrize(
    ("given", "said"),
    [("metrics.enabled=true", "metrics.from"), ("metrics.rules.enabled=true", "metrics.rules.symptoms")],
)
def test_metrics_that_all_could_read_and_alerts_that_lead_nowhere_are_refused(given: str, said: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered("trial", VERSIONS[-1], "--set", given)
    assert said in refused.value.stderr
