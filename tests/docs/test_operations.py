"""Operators' pages: their metrics and alerts are those of the code, and their backups restore a party."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from adserver.records.access import GrantKind, Scope
from adserver.store.access import AccessStore
from adserver.store.database import open_store
from helper.ledger.ledger import LEDGER_FILE, Ledger, sqlite_url
from maskedlark.errors import JobReason
from maskedlark.runtime.database import open_database
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
RULES = yaml.safe_load(re.search(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)[1])["groups"][0]["rules"]  # type: ignore[index]  # fails without rules


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


def test_backups_of_both_parties_restore_them(tmp_path: Path) -> None:
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

    run("lark-helper keygen --name A --host localhost; lark-helper keys rotate --overlap-days 30")
    run("adserver keygen --origin https://ads.example --host localhost; adserver task list")
    printed = run("\n".join(blocks(BACKUP))).stdout
    assert "keys.json" in printed
    assert "ok" in printed.splitlines()
    keys = run("lark-helper keys list --json").stdout
    assert keys == run("lark-helper keys list --json --data restored-helper").stdout
    assert keys == run("lark-helper keys list --json --data moved-helper").stdout
    shown = run("lark-helper certificate show").stdout
    assert shown == run("lark-helper certificate show --data restored-helper").stdout
    assert (tmp_path / "restored-helper").stat().st_mode & 0o077 == 0
    assert (tmp_path / "restored-helper" / "keys.json").stat().st_mode & 0o077 == 0
    assert (tmp_path / "helper-keys.tar").stat().st_mode & 0o077 == 0
