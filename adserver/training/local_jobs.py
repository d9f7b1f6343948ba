"""From a request for a job without helpers, whose devices noise their own updates, to a checked plan."""

from collections.abc import Mapping
from typing import Any, Final

from adserver.records.local_plan import LocalPlan
from adserver.records.submissions import FederatedSubmission
from maskedlark.canonical import build
from maskedlark.errors import InvalidTask
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_forecast import LocalForecast, forecast
from maskedlark.federated.local_job import LocalSettings, local_job
from maskedlark.federated.strategies.line import Line

_KINDS: Final[Mapping[str, type[LocalSettings]]] = {"line": Line, "draw-and-discard": DrawAndDiscard}
_OF_HELPERS: Final = ("epsilon", "least_devices", "model", "eval_set", "eval_every", "task")
_ANY_ID: Final = bytes(16)
_MOST_UPDATES: Final = 1_000_000_000
# Of all instances together: they are drawn at once, and a spam test reads all of them for each update.
_MOST_NUMBERS: Final = 1 << 22


def plan_local(submission: FederatedSubmission, job_id: bytes) -> LocalPlan:
    """Return a new job of the settings that a submission has.

    Raises:
        InvalidTask, InvalidModel: naming the setting.
    """
    if submission.kind not in _KINDS:
        raise InvalidTask(
            f"the strategy is {submission.kind!r}: without helpers, expected one of {', '.join(_KINDS)}"
        )
    given = [name for name in _OF_HELPERS if getattr(submission, name) not in (None, "")]
    if given:
        raise InvalidTask(
            f"a job without helpers has no {given[0].replace('_', ' ')}: leave it out; its noise is in its "
            "settings"
        )
    settings: dict[str, Any] = dict(submission.settings)
    # Settings of a round with helpers: here nobody draws devices, and the noise is the devices' own.
    if submission.kind == "line":
        settings = {"sampling_rate": 1.0, "noise_multiplier": 0.0, **settings}
    job = local_job(job_id, build(_KINDS[submission.kind], settings), submission.widths)
    settled = {"local": job, "seed": submission.seed, "is_tested": submission.is_tested}
    plan = build(LocalPlan, settled)
    _check_size(plan)
    if plan.is_tested:
        _check_spam_test(plan)
    return plan


def forecast_local(submission: FederatedSubmission) -> LocalForecast:
    """Return what a job would cost a person, and its noise; nothing is stored.

    Raises:
        InvalidTask, InvalidModel: as `plan_local`; or more updates of a person than anybody sends.
    """
    if not 0 < submission.updates_each <= _MOST_UPDATES:
        raise InvalidTask(f"updates_each is not from 1 to {_MOST_UPDATES}: give how many a person sends")
    return forecast(plan_local(submission, _ANY_ID).local, updates_each=submission.updates_each)


def _check_size(plan: LocalPlan) -> None:
    settings, model = plan.read_instructions()
    if isinstance(settings, DrawAndDiscard) and settings.instances * model.size > _MOST_NUMBERS:
        raise InvalidTask(
            f"{settings.instances} instances of {model.size} weights are over the limit of {_MOST_NUMBERS} "
            "numbers: use fewer instances, or fewer features"
        )


def _check_spam_test(plan: LocalPlan) -> None:
    settings = plan.read_instructions().settings
    if isinstance(settings, Line) or settings.instances < 2 or settings.epsilon is None:
        raise InvalidTask(
            "the spam test is not available: it requires draw and discard with noise and at least "
            "two instances"
        )
