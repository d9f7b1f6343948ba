"""Prometheus' own rule evaluator, fed with what real services answered to scrapes."""

import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.docker.chart import CHART
from tests.patience import HANGS_S
from tests.programs import find_program

RULES: Final = CHART / "files" / "alerts.yaml"
ALERTS: Final[Sequence[Mapping[str, Any]]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
REQUIRED: Final = "MASKEDLARK_REQUIRE_PROMETHEUS"
CALM_MINUTES: Final = 30
"""How long nothing is wrong before a cause happens; also how long rules are evaluated after it."""
_EVALUATES_S: Final = 120


def promtool_path() -> str:
    """Return where promtool is; the test is skipped where there is none, and fails where one is required."""
    return find_program("promtool", variable="PROMTOOL", required=REQUIRED, package="the package prometheus")


@dataclass
class Target:
    """What a Prometheus has of one endpoint: a scrape a minute, by series."""

    address: str
    job: str
    scrapes: list[Mapping[str, float]] = field(default_factory=list)

    def scrape(self) -> None:
        """Scrape as Prometheus would: without an answer, `up` is 0 and there is nothing else."""
        labels = {"job": self.job, "instance": "one:9464"}
        try:
            with urlopen(f"http://{self.address}/metrics", timeout=HANGS_S) as answer:  # our own server
                families = list(text_string_to_metric_families(answer.read().decode()))
        except URLError:
            self.scrapes.append({_series("up", labels): 0.0})
            return
        now = time.time()
        found = {_series("up", labels): 1.0}
        for family in families:
            for sample in family.samples:
                # the evaluator's clock begins at 0
                value = sample.value - now if sample.name.endswith("_timestamp_seconds") else sample.value
                found[_series(sample.name, sample.labels | labels)] = value
        self.scrapes.append(found)

    def fired(self, folder: Path) -> tuple[set[str], set[str]]:
        """Return the alerts that fired before the second scrape, and those that fired from then on.

        The first scrape lasts for `CALM_MINUTES`, each further one for a minute, the last one to the end.
        """
        first, *others = self.scrapes
        timeline = [first] * CALM_MINUTES + others + others[-1:] * CALM_MINUTES
        series = [
            {
                "series": name,
                "values": " ".join(repr(one[name]) if name in one else "_" for one in timeline),
            }
            for name in sorted({name for one in self.scrapes for name in one})
        ]
        test = {
            "rule_files": [str(RULES)],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": series,
                    "promql_expr_test": [
                        {"expr": _FIRED, "eval_time": f"{minute}m", "exp_samples": _NEVER}
                        for minute in (CALM_MINUTES - 1, len(timeline) - 1)
                    ],
                }
            ],
        }
        path = folder / "test.yaml"
        path.write_text(json.dumps(test))
        done = subprocess.run(
            [promtool_path(), "test", "rules", str(path)],
            check=False,  # what it says is read
            capture_output=True,
            text=True,
            timeout=_EVALUATES_S,
        )
        # what is expected never is, so that the tool prints what it got, at both times
        got = re.findall(r"got:(.*)", done.stdout + done.stderr)
        assert len(got) == 2, done.stdout + done.stderr
        before, after = (set(re.findall(r'alertname=\\?"(\w+)', one)) for one in got)
        return before, after - before


_FIRED: Final = 'count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[10d]))'
_NEVER: Final = [{"labels": "never{}", "value": 0}]


def _series(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in sorted(labels.items()))}}}"
