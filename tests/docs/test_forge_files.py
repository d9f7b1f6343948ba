"""Files by which forges, editors and git hooks know the project: they run what `make check` and CI run."""

import json
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_workflow_runs_what_ci_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert any(".ci/run" in step.get("run", "") for step in job["steps"])
    assert workflow["permissions"] == {"contents": "read"}


def test_each_hook_is_a_step_of_make_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    check = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    for hook in hooks:
        assert hook["entry"].replace(".venv/bin", "$(BIN)") in check, hook["entry"]


def test_each_template_asks_for_something_and_nothing_twice() -> None:
    for name in ("bug", "feature"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
        asked = [one["id"] for one in form["body"] if one["type"] != "markdown"]
        assert len(asked) == len(set(asked)) > 0
        assert form["name"]
        assert form["description"]


def test_a_development_container_is_set_up_by_make() -> None:
    described = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert described["postCreateCommand"] == "make setup"
