"""docs/how-to/train-a-part.md: every block runs, in order, with the exact engine at both helpers."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from adserver.records.training_plan import TrainingPlan
from adserver.store.job_files import JobFiles
from maskedlark.model.onnx_file import parse
from tests.adserver.job_world import NUM_FEATURES
from tests.docs.test_budget_howto import Shell, shell

__all__ = ["shell"]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "train-a-part.md").read_text()
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_a_part_of_a_model_and_an_adapter_are_trained(shell: Shell, tmp_path: Path) -> None:
    printed = ""
    for kind, text in BLOCK.findall(PAGE):
        if kind == "bash":
            printed += "".join(shell.run(line) for line in text.replace("\\\n", "").splitlines())
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's exporter warns about itself
            exec(text, {})  # noqa: S102 # the page's own
    assert "a round trains 2113 of them: 4230 bytes go to each helper, 16904 come back from each" in printed
    assert "a round trains 137 of them" in printed
    plans = [job.plan for job in shell.site.store.all()]
    last = plans[-1]
    assert isinstance(last, TrainingPlan)
    assert last.job.trained == ("down.weight", "up.weight", "last.bias")
    assert [job.state.value for job in shell.site.store.all()] == ["done"]
    assert "down.weight, up.weight, last.bias" in printed
    submitted = JobFiles(shell.site.engine, shell.site.data_dir, last.job.job_id).model()
    before, after = (
        parse(file, num_features=NUM_FEATURES) for file in (submitted, Path("trained.onnx").read_bytes())
    )
    for name, old, new in zip(before.parameters, before.initial_values, after.initial_values, strict=True):
        assert np.array_equal(old, new) == (name.name not in last.job.trained), name
