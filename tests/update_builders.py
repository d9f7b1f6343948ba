"""Federated tasks, jobs and update reports for tests: the smallest honest world whose reports hold
updates."""

from typing import Any

import numpy as np

from maskedlark.privacy.clip import Clip
from maskedlark.randomness import Randomness, seeded
from maskedlark.releases.update import Phase, UpdateJob, UpdateRound
from maskedlark.reports.task import Task
from maskedlark.reports.update_sealing import UpdateOpener, UpdateSealer
from maskedlark.reports.updates import UpdateForm, UpdateVector
from maskedlark.reports.upload import Report
from tests.builders import NOW, World, world

PARAMETERS = 5
FORM = UpdateForm(num_parameters=PARAMETERS, has_weight=True, has_clip_count=True)


def update_settings(**changes: Any) -> dict[str, Any]:
    """The settings of a federated task, beside those of `builders.settings`."""
    return {"unit": "user", "updates": FORM, "frac_bits": 24, **changes}


def update_world(**changes: Any) -> World:
    return world(**update_settings(**changes))


def update_job(task: Task, **changes: Any) -> UpdateJob:
    noise = 0.0 if task.mechanism.value == "none" else 1.0
    given: dict[str, Any] = {
        "job_id": b"u" * 16,
        "task_id": task.task_id,
        "phases": (Phase(rounds=3, sampling_rate=0.5, noise_multiplier=noise),),
        "instructions": "{}",
        **changes,
    }
    return UpdateJob(**given)


def update_round(task: Task, index: int = 0, **changes: Any) -> UpdateRound:
    given: dict[str, Any] = {
        "job": update_job(task),
        "round_index": index,
        "content_digest": bytes([index]) * 32,
        "clip_norm": task.clip_norm,
        **changes,
    }
    return UpdateRound(**given)


def random_vector(form: UpdateForm, clip: Clip, seed: int) -> UpdateVector:
    """An update that may be sent, of a norm just within the bound."""
    drawn = np.random.default_rng(seed)
    values = drawn.normal(size=form.num_parameters)
    values *= clip.sensitivity / np.linalg.norm(values) * (1 - 2.0**-20)
    units = form.figure_units(clip)
    extra = [int(drawn.integers(0, units))] * form.has_weight + [units] * form.has_clip_count
    return np.concatenate([np.trunc(values).astype(np.int64), np.array(extra, np.int64)])


def update_reports(
    of: World, one: UpdateRound, vectors: list[UpdateVector], randomness: Randomness | None = None
) -> list[Report]:
    sealer = UpdateSealer(of.bundle, now=NOW)
    randomness = randomness or seeded(9, "updates")
    clip = one.clip(of.task)
    return [
        sealer.report(one.round_id, clip, vector, unix_s=NOW, randomness=randomness) for vector in vectors
    ]


def update_opener(of: World, role: int, one: UpdateRound) -> UpdateOpener:
    return UpdateOpener(
        task=of.task,
        role=role,
        round_id=one.round_id,
        opening_keys=[of.keys[role].opening],
        view_key=of.pair(role).view_key,
    )
