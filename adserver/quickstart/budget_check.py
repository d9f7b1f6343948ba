"""Whether a run's measurement and training fit the budgets, before anything is started or spent.

    problems = why_over_budget(settings, task, measured=charge_query, reports=320)
    # ("[training] epsilon is 3, but next to [measure] epsilon 3 ... leave it 1.93: lower [training] epsilon
    # to 1.93 or [measure] epsilon to 1.84, or raise the budgets",)

A run's own functions plan the query and the job, for a task that nobody signed: helpers charge them by the
same composition, so a run whose settings pass is not refused later.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from adserver.quickstart.settings import FederatedSettings, Settings, TaskSettings
from maskedlark.errors import JobReason, JobRefused
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from maskedlark.privacy.accounting import Charge
    from maskedlark.reports.measurement import Measurement
    from maskedlark.reports.task import Task

FRAC_BITS_OF_UPDATES: Final = 24
"""The default of strategies; that of tasks, 32, is for gradients of reports."""
# The noise follows from rounds, devices and budgets, not from the model: the smallest will do.
_SMALL: Final = (1, 2)
# Of the range of epsilons of a measurement: beyond the three digits that are kept
_HALVINGS: Final = 12


def unsigned_task(
    settings: TaskSettings,
    *,
    measurement: "Measurement | None" = None,
    devices: int | None = None,
    features: int = _SMALL[0],
    classes: int = 2,
    parameters: int = (_SMALL[0] + 1) * _SMALL[1],
) -> "Task":
    """Return the task of a run as far as noise follows from it; its helpers are nobody.

    Args:
        settings: Its budgets, settled: of a person's rows, their number is known.
        measurement: What it declares to measure.
        devices: How many people's devices send updates; None for a task of reports.
        features: Bytes of a report, from which no noise follows.
        classes: Of its label, likewise.
        parameters: Of the model whose updates devices send, likewise.
    """
    # These load numpy, which light commands do without.
    from adserver.client.tasks import task_fields
    from adserver.collecting.task_settings import label_space
    from maskedlark.canonical import build
    from maskedlark.frozen import pick_attributes
    from maskedlark.reports.task import Task
    from maskedlark.reports.task_kinds import PrivacyUnit

    given = pick_attributes(settings, ("min_batch_size", "clip_norm", "epsilon", "collusion_epsilon"))
    if settings.person:
        if settings.rows_per_person is None:
            raise AssertionError("settled settings have the rows of a person")
        given |= {"unit": PrivacyUnit.USER, "reports_per_user": settings.rows_per_person}
    if devices is not None:
        given |= {"updates": {"num_parameters": parameters}, "frac_bits": FRAC_BITS_OF_UPDATES}
        given |= {"max_dataset_size": devices}
    fields = task_fields(
        {"name": "forecast", "origin": "https://ads.example", **given},
        labels=label_space(classes=classes, default_label=None),
        encoder=None,
        features=features,
        measurement=measurement,
        days=1.0,
    )
    helpers = [
        {"name": f"helper {role}", "verify_key": bytes([role]) * 32, "agreement_key": bytes([role]) * 32}
        for role in (0, 1)
    ]
    return build(Task, {**fields, "helpers": helpers})


def strategy_settings(federated: FederatedSettings, *, devices: int) -> Mapping[str, Any]:
    """Return the settings of the strategy by which people's devices train."""
    local = {name: getattr(federated, name) for name in ("epochs", "batch_size", "learning_rate")}
    return {"devices": devices, "sampling_rate": federated.sampling_rate, "local": local}


def why_over_budget(
    settings: Settings,
    task: "Task",
    *,
    measured: "Callable[[float], Sequence[Charge]] | None" = None,
    reports: int,
    why_general: Sequence[str] = (),
) -> Iterator[str]:
    """Yield what a run's job over reports would be refused for.

    Args:
        settings: The project's.
        task: As of `unsigned_task`.
        measured: What the measurement, which is asked first, is charged as at an epsilon; None without one.
        reports: How many the job trains on.
        why_general: What forces its model to the general path, where samples are no secret.
    """
    # Loads numpy, which light commands do without.
    from adserver.budgets.headroom import JobLimits, default_batch_size

    training = settings.training
    rounds, batch_size = training.usual_rounds, training.batch_size or default_batch_size(reports)
    already = () if measured is None else measured(settings.measure.epsilon)
    limits = JobLimits(task=task, dataset_size=reports, already=already, epsilon=training.epsilon)
    try:
        samples = limits.samples(batch_size, rounds)
        if why_general and samples.rate < 1 and not samples.is_public:
            yield (
                "[training] batch_size: a model on the general path cannot draw secret samples: leave it "
                f"out, or change the model, since {'; '.join(why_general)}"
            )
            return
        limits.noise_asked_for(rounds=rounds, batch_size=batch_size)
    except JobRefused as refusal:
        if refusal.reason is not JobReason.BUDGET_EXHAUSTED:
            yield f"[training] cannot be asked of {plural(reports, 'report')}: {refusal}"
            return
        left = limits.epsilon_left(rounds=rounds, batch_size=batch_size)
        if measured is None:
            yield _describe(settings, left)
            return

        def fits(epsilon: float) -> bool:
            try:
                replace(limits, already=measured(epsilon)).noise_asked_for(
                    rounds=rounds, batch_size=batch_size
                )
            except JobRefused:
                return False
            return True

        yield _describe(settings, left, measurement_left=_find_most(fits, settings.measure.epsilon))


def compare_noise(settings: Settings, *, reports: int) -> float:
    """Return how many times the noise of training is that of an epsilon of one row.

    Args:
        settings: The project's, settled, whose task names the person.
        reports: How many the job trains on.

    Raises:
        JobRefused(BUDGET_EXHAUSTED): no noise fits the budgets.
    """
    # Loads numpy, which light commands do without.
    from adserver.budgets.headroom import JobLimits, default_batch_size

    training = settings.training
    of_row = replace(settings.task, person="", rows_per_person=None)
    person, row = (
        JobLimits(task=unsigned_task(one), dataset_size=reports, epsilon=training.epsilon).noise_for(
            rounds=training.usual_rounds, batch_size=training.batch_size or default_batch_size(reports)
        )
        for one in (settings.task, of_row)
    )
    return person / row


def _find_most(fits: Callable[[float], bool], refused: float) -> float:
    """Return the most below a refused epsilon that fits, rounded down to three digits; 0 if none does."""
    # Loads numpy, which light commands do without.
    from adserver.budgets.asked_epsilon import round_down

    low, high = 0.0, refused
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return round_down(low)


def why_devices_over_budget(settings: Settings, *, devices: int) -> Iterator[str]:
    """Yield what a run's job on people's devices would be refused for."""
    # Loads numpy, which light commands do without.
    from adserver.budgets.asked_epsilon import round_down
    from adserver.records.submissions import FederatedSubmission
    from adserver.training.federated.submission import plan_federated
    from maskedlark.privacy.accounting import spent

    training = settings.training
    task = unsigned_task(settings.task, devices=devices)
    asked = FederatedSubmission(
        kind="dp-fedavg",
        settings={**strategy_settings(settings.federated, devices=devices), "rounds": training.usual_rounds},
        widths=_SMALL,
        epsilon=training.epsilon,
    )
    plan = partial(plan_federated, task=task, job_id=bytes(16), now_s=task.starts_at)
    try:
        plan(asked)
    except JobRefused as refusal:
        if refusal.reason is not JobReason.BUDGET_EXHAUSTED:
            yield f"[training] cannot be asked of {plural(devices, 'device')}: {refusal}"
            return
        granted = plan(replace(asked, epsilon=task.epsilon), takes_less=True).job
        left = round_down(spent(granted.charges(task, granted.rounds), task.delta).ad_server)
        yield _describe(settings, left)


def _describe(settings: Settings, left: float, *, measurement_left: float | None = None) -> str:
    """Say what epsilon training may ask for, and what to change.

    Args:
        settings: The project's.
        left: The most that training may cost, 0 if nothing is left.
        measurement_left: The most that the measurement may cost next to this training; None: nothing is
            measured.
    """
    task, measure = settings.task, settings.measure.epsilon
    next_to = "" if measurement_left is None else f"next to [measure] epsilon {measure:g} "
    lower = [
        f"{section} epsilon to {most:g}"
        for section, most in (("[training]", left), ("[measure]", measurement_left))
        if most
    ]
    remedy = f"lower {' or '.join(lower)}, or raise" if lower else "raise"
    return (
        f"[training] epsilon is {settings.training.epsilon:g}, but {next_to}the budgets, [task] epsilon "
        f"{task.epsilon:g} and collusion_epsilon {task.collusion_epsilon:g}, leave it {left:g}: {remedy} the "
        "budgets"
    )
