"""Operators' pages: their metrics and alerts are those of the code, and their backups restore a party."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from adserver.cli.main import app as adserver_app
from adserver.records.access import GrantKind, Scope
from adserver.store.access import AccessStore
from adserver.store.database import open_store
from helper.cli.main import app as helper_app
from helper.ledger.ledger import LEDGER_FILE, Ledger, sqlite_url
from maskedlark.errors import JobReason
from maskedlark.runtime.database import open_database
from tests.alerts.prometheus import promtool_path
from tests.docs.reading import PLAIN_PATH, ROOT, blocks, in_one_shell

PAGE = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
BACKUP = ROOT / "docs" / "how-to" / "backup.md"
SOURCES = [
    "adserver/serving/metrics.py",
    "adserver/serving/intake_metrics.py",
    "helper/serving/metrics.py",
    "maskedlark/observability/call_metrics.py",
    "maskedlark/observability/certificate_expiry.py",
]
FAMILY = re.compile(r"(Counter|CounterMetric|CounterMetricFamily|GaugeMetricFamily|Histogram)\(\s*\"(\w+)\"")
METRIC = re.compile(r"\b(?:maskedlark|helper|adserver)_\w+\b")
SYMPTOMS = (ROOT / "docs" / "how-to" / "symptoms.md").read_text()
FILES = ROOT / "docker" / "chart" / "files"
RULES = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"][0]["rules"]
PANELS = [
    panel
    for path in sorted((FILES / "dashboards").glob("*.json"))
    for panel in json.loads(path.read_text())["panels"]
]
HISTOGRAM = re.compile(r"_(bucket|sum|count)\b")


def names_in_the_code() -> set[str]:
    found = [of for path in SOURCES for of in FAMILY.findall((ROOT / path).read_text())]
    return {f"{name}_total" if kind.startswith("Counter") else name for kind, name in found}


def labels_on_the_page() -> dict[str, set[str]]:
    rows = re.findall(r"^\| `(\w+)(?:\{([\w,]+)\})?` \|", PAGE, re.M)
    return {name: set(labels.split(",")) - {""} for name, labels in rows}


def test_the_table_has_every_metric_of_the_code_and_no_other() -> None:
    assert labels_on_the_page().keys() == names_in_the_code()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_uses_metrics_labels_and_reasons_that_exist(rule: dict[str, object]) -> None:
    expression = str(rule["expr"])
    on_the_page = labels_on_the_page()
    names = set(METRIC.findall(expression))
    assert names <= on_the_page.keys()
    assert names or "up{" in expression
    for name, matchers in re.findall(r"(\w+)\{(.*?)\}", expression):
        given = set(re.findall(r"(\w+)!?=", matchers))
        assert given <= on_the_page.get(name, {"job"})
    for reason in re.findall(r'reason="(\w+)"', expression):
        assert reason in {one.value for one in JobReason}
    assert expression.count("(") == expression.count(")")
    is_gauge = [not name.endswith("_total") for name in names]
    assert not (any(is_gauge) and re.search(r"\b(increase|rate)\(", expression)), "a gauge needs delta()"


def test_each_alert_has_a_section_of_its_name_that_it_links_to() -> None:
    sections = re.findall(r"^## ([A-Z][a-z]+(?:[A-Z][a-z]+)+)$", SYMPTOMS, re.M)
    assert sections == [rule["alert"] for rule in RULES]


def test_each_way_in_which_a_ledger_is_refused_has_a_row() -> None:
    said = re.findall(r'"(the ledger (?:is|can)[a-z ]+)', (ROOT / "helper/ledger/check.py").read_text())
    assert len(said) == 3
    assert [one for one in said if f"`{one.strip()}`" not in SYMPTOMS] == []


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_metrics_and_labels_that_exist(panel: dict[str, Any]) -> None:
    on_the_page = labels_on_the_page()
    for target in panel["targets"]:
        names = {HISTOGRAM.sub("", name) for name in METRIC.findall(target["expr"])}
        assert names <= on_the_page.keys()
        assert names or "up{" in target["expr"]
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        known = {"instance", "job"}.union(*(on_the_page[name] for name in names))
        assert shown <= known
    assert panel["description"]


def test_prometheus_parses_every_panel_and_rule(tmp_path: Path) -> None:
    promtool = promtool_path()
    queries = [target["expr"].replace("$instance", ".*") for panel in PANELS for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "panels.yaml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    for file in (tmp_path / "panels.yaml", FILES / "alerts.yaml"):
        subprocess.run([promtool, "check", "rules", file], check=True, capture_output=True)


def test_the_page_of_the_audit_log_runs_as_it_is(tmp_path: Path) -> None:
    helper, adserver = tmp_path / "helper", tmp_path / "adserver"
    helper.mkdir()
    Ledger(open_database(sqlite_url(helper / LEDGER_FILE))).close()
    store = AccessStore(open_store(adserver, None), lambda: 1_000.0)
    store.make(GrantKind.TOKEN, Scope.READ, name="\x1b[2Jhostile", lasts_s=60.0)
    programs = str(Path(sys.executable).parent)
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{programs}{os.pathsep}{PLAIN_PATH}",
        "HELPER_DATA": str(helper),
        "ADSERVER_DATA": str(adserver),
        "COLUMNS": "300",
    }
    script = "set -e\n" + "\n".join(blocks(ROOT / "docs" / "how-to" / "audit-log.md"))
    ran = in_one_shell(script, folder=tmp_path, environment=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "begin_log" in ran.stdout
    assert "create_token" in ran.stdout
    assert "\x1b[2J" not in ran.stdout
    assert r"name=\x1b[2Jhostile" in ran.stdout
    assert ran.stdout.count("the chain holds") == 3


@pytest.mark.parametrize("host", [" --host localhost", ""], ids=["TLS", "plaintext"])
def test_backups_of_both_parties_restore_them(tmp_path: Path, host: str) -> None:
    programs = str(Path(sys.executable).parent)
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{programs}{os.pathsep}{PLAIN_PATH}",
        "HELPER_DATA": str(tmp_path / "helper"),
        "ADSERVER_DATA": str(tmp_path / "adserver"),
    }

    def run(script: str) -> subprocess.CompletedProcess[str]:
        ran = in_one_shell(f"set -e\n{script}", folder=tmp_path, environment=environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran

    run(f"lark-helper keygen --name A{host}; lark-helper keys rotate --overlap-days 30")
    if host:
        run(f"adserver keygen --origin https://ads.example{host}")
        (tmp_path / "helper" / "trusted.names").write_text("# nobody yet\n")
    (tmp_path / "helper" / "witness").write_bytes(b"where the ledger stood")
    (tmp_path / "adserver").mkdir(mode=0o700, exist_ok=True)
    run("adserver task list")
    local = '"local": {"epochs": 1, "batch_size": 5, "learning_rate": 0.5}'
    settings = '{"devices": 3, "rounds": 1, "bound": {"clip_norm": 1.0}, "epsilon": 4.0, ' + local + "}"
    (tmp_path / "line.json").write_text(settings)
    options = "--no-helpers --strategy line --settings line.json --layers 3,2"
    local_job = run(f"adserver job submit {options}").stdout.strip()
    printed = run("\n".join(blocks(BACKUP))).stdout
    assert "keys.json" in printed
    assert "adserver.sqlite3 ok" in printed.splitlines()
    assert local_job in run("adserver job list --json --data restored-adserver").stdout
    keys = run("lark-helper keys list --json").stdout
    assert keys == run("lark-helper keys list --json --data restored-helper").stdout
    assert keys == run("lark-helper keys list --json --data moved-helper").stdout
    if host:
        shown = run("lark-helper certificate show").stdout
        assert shown == run("lark-helper certificate show --data restored-helper").stdout
        assert (tmp_path / "restored-helper" / "trusted.names").exists()
    assert (tmp_path / "restored-helper" / "witness").read_bytes() == b"where the ledger stood"
    assert (tmp_path / "restored-helper").stat().st_mode & 0o077 == 0
    assert (tmp_path / "restored-helper" / "keys.json").stat().st_mode & 0o077 == 0
    assert (tmp_path / "helper-keys.tar").stat().st_mode & 0o077 == 0


def section(name: str) -> str:
    """Return what stands under a heading of the page of operations."""
    page = (ROOT / "docs" / "how-to" / "operations.md").read_text()
    return page.split(f"## {name}\n")[1].split("\n## ")[0]


def serve_of(app: typer.Typer) -> Any:
    group = typer.main.get_group(app)
    with group.make_context("", ["serve"]) as context:
        command = group.get_command(context, "serve")
    assert command is not None
    return command


@pytest.mark.parametrize(("place", "app"), [(0, helper_app), (1, adserver_app)], ids=["helper", "ad server"])
def test_a_unit_gives_its_command_all_that_it_needs_and_nothing_that_it_does_not_know(
    place: int, app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = re.findall(r"^```ini\n(.*?)^```", section("As a service of the machine"), re.M | re.S)[place]
    (arguments,) = re.findall(r"^ExecStart=/opt/maskedlark/bin/\S+ serve(.*)$", unit, re.M)
    lines = re.findall(r"^Environment=(.*)$", unit, re.M)
    given = dict(one.split("=") for line in lines for one in line.split())
    command = serve_of(app)
    assert {one for one in given if not one.startswith("MALLOC_")} <= {one.envvar for one in command.params}
    for name in [one for one in os.environ if one.startswith(("HELPER_", "ADSERVER_"))]:
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    command.make_context("serve", arguments.split())
    (folder,) = [value for name, value in given.items() if name.endswith("_DATA")]
    assert f"ReadWritePaths={folder}\n" in unit


def test_the_floors_of_the_page_have_the_defaults_of_the_code() -> None:
    shown: dict[str, str] = {}
    for options, defaults in re.findall(r"^\| (`--[^|]+) \| ([^|]+) \|", section("Floors"), re.M):
        names = re.findall(r"`(--[\w-]+)`", options)
        shown |= dict(zip(names, re.split(r", (?=\d+$)", defaults), strict=True))
    actual = {one.opts[0]: one.default for one in serve_of(helper_app).params}
    assert len(shown) > 5
    for option, default in shown.items():
        assert actual[option] == (False if default == "no" else float(default.replace(",", ""))), option
