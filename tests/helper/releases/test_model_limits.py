"""A helper reads models of as many parameters as its operator admits."""

from dataclasses import replace
from pathlib import Path

from maskedlark import canonical
from maskedlark.errors import ModelReason
from maskedlark.model.limits import HELPER_PARAMETERS, MOST_PARAMETERS, Limits
from maskedlark.model.onnx_file import parse
from tests.helper.parties import ASKED, FLOORS, MODEL, Scene
from tests.refusals import refused


def test_a_model_past_the_operators_limit_is_refused_before_it_costs_anything(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    dataset = scene.seal(30)
    size = parse(MODEL, num_features=scene.task.num_features).num_parameters
    job = canonical.encode(scene.job(dataset))
    scene.parties[0].floors = replace(FLOORS, max_parameters=size - 1)
    scene.restart()
    with refused(ModelReason.TOO_LARGE, f"the limit is {size - 1}"):
        scene.cores[0].jobs.start(job, MODEL, ASKED)
    assert scene.cores[0].counts().open_jobs == 0
    scene.parties[0].floors = replace(FLOORS, max_parameters=size)
    scene.restart()
    scene.cores[0].jobs.start(job, MODEL, ASKED)
    assert scene.cores[0].counts().open_jobs == 1


def test_a_helper_reads_files_of_eight_million_weights_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    limits = Scene(tmp_path).cores[0].tasks.model_limits
    assert limits == Limits.admitting(HELPER_PARAMETERS)
    assert (limits.max_parameters, limits.max_bytes) == (1 << 23, 40 << 20)
    assert Limits() == Limits.admitting(MOST_PARAMETERS)
