"""A plan as people see it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from adserver.budgets.comparison import Comparison
from adserver.budgets.headroom import JobLimits
from adserver.budgets.planner import Option, Plan
from adserver.messages.plan import PlanMessage, schedule_settings, submit_options, submit_settings
from adserver.records.facts import Facts
from adserver.records.html_table import html_note, html_table, text_table
from adserver.records.optimizer_kinds import ScheduleKind
from adserver.records.plans import AnyPlan
from adserver.records.scored_loss import class_weights, scored_loss
from adserver.records.submissions import AnySubmission, PlanRequest, Submission
from adserver.records.training_plan import Schedule, TrainingPlan
from adserver.training.defaults import ROUNDS
from adserver.training.planning import GeneralPath, Planned
from adserver.views.printing import print_table
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import MaskedLarkError
from maskedlark.escape import escape
from maskedlark.frozen import frozen
from maskedlark.model.heads import TrainedLoss
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import LabelKind
from maskedlark.terminal.budget_view import number
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maskedlark.model.graph import Model

GENERAL_PATH: Final = (
    "the model trains on the general path, which needs torch at the helpers (their extra `torch`), is a "
    "hundred times slower, and has samples charged as public; helpers refuse to evaluate such a model "
    "(`adserver evaluate`, client.evaluate)"
)

_LENGTHS: Final = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))

# Noise is found to 1 %
_SEARCHED: Final = 1.01

# Of the rule's rate: good weights lost some .002 of AUC by it (docs/explanation/defaults.md)
_FOR_TRAINED: Final = 0.1
# Of a label that is rarer than this times the share of clipped gradients, most gradients may be clipped
_RARE: Final = 2.0


class ShownPlan(Facts):
    """The values of `adserver job plan --json`, which a shell and a notebook show as `print_plan` does."""

    def __init__(self, planned: Planned, request: PlanRequest) -> None:
        super().__init__(PlanMessage.of(planned, request).model_dump(mode="json"))
        self._parts = tuple(_describe_plan(planned, request, is_python=True))

    def __repr__(self) -> str:
        """Show the job to submit, then what else fits."""
        return "\n".join(one if isinstance(one, str) else text_table(*one) for one in self._parts)

    def _repr_html_(self) -> str:
        """Return the same with tables, for a notebook."""
        return "".join(html_note(one) if isinstance(one, str) else html_table(*one) for one in self._parts)


def print_plan(planned: Planned, request: PlanRequest) -> None:
    """Print the job to submit and how, then the table of what fits, with that job's row marked."""
    for line in planned.warnings:
        typer.echo(str(Remark(text=escape(line), is_warning=True)), err=True)
    for part in _describe_plan(planned, request, is_python=False):
        typer.echo(part) if isinstance(part, str) else print_table(*part)


class _Table(NamedTuple):
    head: tuple[str, ...]
    rows: list[tuple[object, ...]]


def _describe_plan(planned: Planned, request: PlanRequest, *, is_python: bool) -> Iterator[str | _Table]:
    """Yield lines and tables, in options or in words of Python."""
    plan, room, best = planned.plan, planned.room, planned.plan.recommended
    yield from _describe_best(planned, request, is_python=is_python)
    yield _Table(
        ("", "rounds", "batch", "noise", "epsilon", "dataset", *_heads_of_worth(plan), "limit"),
        [_row(option, plan) for option in plan.alternatives],
    )
    yield from _describe_columns(plan, room, is_python=is_python)
    if planned.compared is not None:
        yield from _describe_comparison(planned.compared, plan, is_python=is_python)
    if planned.general is not None:
        yield from _describe_general_path(planned.general, best)
    elif best.core_seconds is not None:
        yield from describe_path(())
    if room.jobs > 1 or room.tests is not None:
        yield from _describe_division(plan, room, is_python=is_python)


def _describe_best(planned: Planned, request: PlanRequest, *, is_python: bool) -> Iterator[str]:
    """Yield the job to submit, how, and whether more was asked for than fits."""
    room, best = planned.room, planned.plan.recommended
    alone, is_one = best.cost.alone, room.jobs == 1
    yield (
        f"{'the job to submit' if is_one else f'each of the {room.jobs} jobs to submit'}: "
        f"{plural(best.rounds, 'round')} of {best.batch_size:,.0f} reports with noise "
        f"{best.noise_multiplier:.4g}{' correlated' if best.carried else ''}, for epsilon "
        f"{number(alone.ad_server)} against the ad server and {number(alone.colluding)} against it with one "
        "helper"
    )
    if is_python:
        yield f"{'train it' if is_one else 'train each'} with: {_train_call(best, planned, request)}"
    else:
        options = escape(submit_options(best, planned, request))
        yield f"{'submit it' if is_one else 'submit each'} with: {options}"
    if planned.rule_rate is not None and planned.plan.learning_rate is None:
        yield (
            f"its learning rate is {planned.rule_rate:g}, by the rule for {room.dataset_size:,} reports, "
            f"unless you name one ({_name_setting('learning_rate', is_python=is_python)})"
        )
    if planned.refusal:
        asked = f"train(epsilon={room.epsilon:g})" if is_python else f"submit --epsilon {room.epsilon:g}"
        yield f"{asked} is refused: {escape(planned.refusal)}; the jobs here cost less"
    yield "jobs that fit, with ▶ at this one:"


def _train_call(option: Option, planned: Planned, request: PlanRequest) -> str:
    """Return the call of `Client.train` that gives exactly this job, and where its names are from."""
    settings, schedule = submit_settings(option, planned, request), planned.room.schedule
    numbers, imported = schedule_settings(schedule), ""
    shown = {name: _spell(value) for name, value in settings.items() if name not in numbers}
    if "schedule" in shown and schedule != Schedule(kind=schedule.kind):
        others = "".join(f", {name}={value!r}" for name, value in numbers.items())
        shown["schedule"] = f"Schedule(kind=ScheduleKind.{schedule.kind.name}{others})"
        sources = (f"from {one.__module__} import {one.__name__}" for one in (ScheduleKind, Schedule))
        imported = f"  # {'; '.join(sources)}"
    chosen = ", ".join(f"{name}={value}" for name, value in shown.items())
    return f"client.train(model, loss=..., eval_set=..., {chosen}){imported}"


def _spell(value: object) -> str:
    if value is None:  # yours to give, as loss and eval_set are
        return "..."
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


def _name_setting(name: str, *, is_python: bool) -> str:
    return f"{name}=" if is_python else f"--{name.replace('_', '-')}"


def _describe_columns(plan: Plan, room: JobLimits, *, is_python: bool) -> Iterator[str]:
    """Yield what the columns of the table are."""
    best, task = plan.recommended, room.task
    if plan.is_norm_known:
        yield (
            "ratio, of noise to signal: both helpers' noise on a round's mean gradient, over a gradient of "
            f"norm {plan.gradient_norm:g}, as you expect{_describe_bound(plan, room)}"
        )
        yield "worth: so many steps without noise are predicted to gain as much, each at its best length"
    else:
        yield (
            "least ratio, of noise to signal: both helpers' noise on a round's mean gradient, over the clip "
            f"norm, {plan.gradient_norm:g}, which no such gradient exceeds; most are shorter, and the ratio "
            f"is often ten times as large. With {_name_setting('gradient_norm', is_python=is_python)}, such "
            "as an earlier job's curves have, it is the likely one, with what each job is worth"
        )
    if best.weight_noise is not None:
        yield (
            "weights: the error of each weight after the last round by both helpers' noise, at this rate, "
            "momentum and schedule"
        )
    if best.core_seconds is not None:
        yield "core s: processor seconds of both helpers together, about twice what they will be"
    by_label = (
        "client.budgets(relation=Relation.LABEL)" if is_python else "`adserver budget --relation label`"
    )
    yield (
        f"epsilon: of {'one' if room.jobs > 1 else 'this'} job alone; dataset: what that has spent or"
        f" reserved with {_describe_sharing(room)}, of {_both(task)}"
        "; in parentheses against the ad server with one helper; of zeroing one report (of one label against"
        f" another: {by_label}), at delta {task.delta:.2g}"
    )


def describe_path(reasons: Sequence[str]) -> list[str]:
    """Return lines that say whether helpers compute a model exactly, or each reason why they do not."""
    if not reasons:
        return ["helpers compute the model exactly"]
    return [f"{GENERAL_PATH}:", *(f"  {escape(reason)}" for reason in reasons)]


@frozen
class Remark:
    """What a person is told of a job that was accepted, or is rehearsed.

    Attributes:
        text: One line, or the lines of one matter.
        is_warning: Whether the reader should act on it; other remarks say what was chosen.
    """

    text: str
    is_warning: bool = False

    def __str__(self) -> str:
        """Return the line that is printed."""
        return f"warning: {self.text}" if self.is_warning else self.text


def tell_path(
    submission: AnySubmission, plan: AnyPlan, find_encoder: Callable[[bytes], Encoder | None]
) -> None:
    """Print `remarks_of_job` to standard error."""
    for remark in remarks_of_job(submission, plan, find_encoder):
        typer.echo(str(remark), err=True)


def remarks_of_job(
    submission: AnySubmission,
    plan: AnyPlan,
    find_encoder: Callable[[bytes], Encoder | None],
    *,
    is_python: bool = False,
    is_default: bool = False,
) -> Iterator[Remark]:
    """Yield what was chosen for a job that was accepted, how helpers compute it, and what may be wrong.

    Nothing is said of a job on devices.

    Args:
        submission: What was asked for.
        plan: What became of it.
        find_encoder: Returns the encoder of a task's id, with which the model is compared.
        is_python: Name arguments of `Client.train` instead of options.
        is_default: Whether the job trains the default network, at a rate by its own rule.
    """
    from adserver.training.any_records import TAKES_ONE_RECORD, take_any_records, takes_one_record
    from adserver.training.default_optimizer import warn_of_rate
    from adserver.training.merged_parameters import separate_parameters
    from adserver.training.model_file import parse_chosen
    from adserver.training.standardising import standardise_submission, warn_without_panel

    # Devices train, and helpers only sum: no path is chosen
    if not isinstance(submission, Submission) or not isinstance(plan, TrainingPlan):
        return
    # As the server does: a standardised graph has other operators, which may decide the path
    begun = standardise_submission(submission)
    model = parse_chosen(
        separate_parameters(begun.model),
        num_features=plan.task.num_features,
        train=submission.train,
        freeze=submission.freeze,
    )
    if begun.told:
        leave = "standardise=False" if is_python else "--as-it-is"
        yield Remark(text=f"{begun.told} ({leave} leaves the file as it is)")
    if line := warn_without_panel(submission, num_features=plan.task.num_features, is_python=is_python):
        yield Remark(text=line, is_warning=True)
    # Of the file as it was given: what begins at a base rate ends with that.
    file = separate_parameters(submission.model)
    yield from remarks_of_loss(file, plan.job.loss, plan.task)
    chosen = plan.optimizer
    if submission.optimizer is None:
        yield Remark(
            text=f"learning rate {chosen.learning_rate:g}, by the rule for {plan.dataset_size:,} reports "
            f"and {plural(model.num_parameters, 'parameter')}, with momentum and a cosine schedule: "
            f"{'client.rehearse' if is_python else '`adserver job rehearse`'} compares others"
        )
        if begun.is_trained:
            yield Remark(text=_warn_of_trained(chosen.learning_rate, is_python=is_python))
    elif is_default:
        yield Remark(
            text=f"no model is given, so the default network of {plan.dataset_size:,} reports trains: "
            f"{plural(model.num_parameters, 'parameter')}, rate {chosen.learning_rate:.2g} by its rule"
        )
    else:
        yield Remark(
            text=f"learning rate {chosen.learning_rate:g}, as named, with {chosen.kind} and a "
            f"{plan.schedule.kind} schedule (without a rate: the rule's)"
        )
        if line := warn_of_rate(submission, plan, parameters=model.num_parameters):
            yield Remark(text=line, is_warning=True)
    if submission.rounds is None and not submission.is_until_budget and plan.job.rounds != ROUNDS:
        yield Remark(text=_describe_rounds(plan, is_python=is_python))
    yield _remark_of_path(model, plan)
    yield from _remarks_of_labels(submission, plan, model.output_width, is_python)
    yield from _remarks_of_layers(file, model)
    if takes_one_record(take_any_records(file)):
        yield Remark(text=TAKES_ONE_RECORD)
    yield from remarks_of_columns(file, plan.task, find_encoder)


def _describe_rounds(plan: TrainingPlan, *, is_python: bool) -> str:
    """Return a line on the rounds that the rule chose for a hidden layer."""
    rounds, usual = plan.job.rounds, f"rounds={ROUNDS}" if is_python else f"--rounds {ROUNDS}"
    return (
        f"{rounds} rounds, by the rule for {plan.dataset_size:,} reports and an untrained hidden layer "
        f"without tables of words: it learns more than in {ROUNDS}, at the same epsilon and "
        f"{rounds / ROUNDS:g} times the time ({usual} takes less)"
    )


def _remark_of_path(model: "Model", plan: TrainingPlan) -> Remark:
    """Say whether helpers compute a model exactly; if not, why, and how long it takes."""
    from maskedlark.model.core_seconds import round_seconds
    from maskedlark.model.exactness import why_general

    lines, reasons = [], why_general(model, plan.job.loss)
    if reasons:
        records, labels = round(plan.denominator), plan.task.num_candidates
        seconds = plan.job.rounds * round_seconds(model, "general", records=records, candidates=labels)
        lines = [_describe_time(seconds, plan.job.rounds, records)]
    return Remark(text="\n".join([*describe_path(reasons), *lines]), is_warning=bool(reasons))


def _remarks_of_layers(file: bytes, model: "Model") -> Iterator[Remark]:
    """Yield how layers train that behave otherwise in a framework's training."""
    import onnx

    if any(node.op_type == "Dropout" for node in onnx.ModelProto.FromString(file).graph.node):
        yield Remark(text="dropout is not applied: the network trains as it predicts")
    if any(node.operator == "BatchNormalization" for node in model.nodes):
        yield Remark(
            text="batch normalisation uses the means and variances of the file, which training leaves as "
            "they are: those of a network that never ran on data are 0 and 1, and those that were fitted "
            "to features as they are do not fit standardised ones (--as-it-is, or standardise=False, leaves "
            "features as they are)"
        )


def _describe_bound(plan: Plan, room: JobLimits) -> str:
    """Say what the noise is at, where the bound of the job moves by itself."""
    if room.clip_norm is not None or plan.recommended.carried is not None:
        return ""
    return (
        f", with noise at the clip norm {room.clip.bound:g}. The bound of a job by default begins at "
        f"{AdaptiveClip().initial * room.clip.bound:g} and follows the gradients, and so does its noise: the "
        "ratio is then lower, and the worth higher"
    )


def remarks_of_loss(file: bytes, loss: TrainedLoss, task: Task) -> Iterator[Remark]:
    """Yield a warning if a loss of numbers trains on two classes without need."""
    from adserver.training.model_file import warn_of_loss
    from maskedlark.model.onnx_file import parse

    classes = task.labels.size if task.labels.kind is LabelKind.CLASSES else None
    if line := warn_of_loss(parse(file, num_features=task.num_features), loss, classes):
        yield Remark(text=line, is_warning=True)


def remarks_of_columns(
    file: bytes, task: Task, find_encoder: Callable[[bytes], Encoder | None]
) -> Iterator[Remark]:
    """Yield a warning for each way in which a model reads columns of a task's encoder as what they are not.

    What the server does not say is no failure of what was asked for.
    """
    from adserver.training.column_uses import warn_of_columns

    with suppress(MaskedLarkError):
        encoder = None if task.encoder is None else find_encoder(task.task_id)
        for line in () if encoder is None else warn_of_columns(file, encoder):
            yield Remark(text=escape(line), is_warning=True)


def _warn_of_trained(rate: float, *, is_python: bool) -> str:
    """Return a line that says what the rule's rate does to weights that were trained."""
    option, rehearse = (
        ("learning_rate=", "client.rehearse") if is_python else ("--learning-rate", "`adserver job rehearse`")
    )
    return (
        "note: the weights know the panel's labels already (untrained ones rarely seem to: then begin with "
        f"others). The rule's rate, {rate:.2g}, gains where they "
        "miss something, and its noise takes ranking from weights that miss little; a rate such as "
        f"{_FOR_TRAINED * rate:.2g} ({option}) changes them less. {rehearse} compares both on examples first"
    )


def _remarks_of_labels(
    submission: Submission, plan: TrainingPlan, outputs: int, is_python: bool
) -> Iterator[Remark]:
    """Yield what the evaluation set is no use for, and what keeps predictions from adding up."""
    from adserver.training.eval_set import read_eval_set
    from adserver.training.panel_note import KEEP_BACK, was_trained_on

    labels: NDArray[Any] | None = None
    if submission.eval_set is not None:
        panel = read_eval_set(submission.eval_set)
        labels = panel.labels
        if was_trained_on(submission.model, panel):
            yield Remark(
                text="the model was trained on the records of this evaluation set (a warm start), so the "
                f"job's figures are too good: {KEEP_BACK}",
                is_warning=True,
            )
        if (labels == labels[0]).all():
            yield Remark(
                text=f"all {len(labels):,} records of the evaluation set have the label {labels[0]:g}: it "
                "neither standardises the network nor tells whether the model learns; give one with other "
                "labels, too",
                is_warning=True,
            )
            return
    if why := _why_not_adding_up(plan, outputs, labels):
        yield Remark(
            text=f"{why}: predictions will not add up until the model is calibrated, by "
            + ("job.calibrate(panel=FILE)" if is_python else "`adserver model calibrate --panel FILE`")
        )


def _why_not_adding_up(plan: TrainingPlan, outputs: int, labels: "NDArray[Any] | None") -> str:
    """Return why predictions of two classes will be too large or too small: weights, or a rare label."""
    from adserver.training.inference import OF_TWO_CLASSES

    loss = scored_loss(plan.job.loss, outputs)
    of_0, of_1 = class_weights(plan.job.loss, outputs)
    if of_0 != of_1:
        return f"the loss of label 1 is multiplied by {of_1:g}, that of label 0 by {of_0:g}"
    if plan.adaptive_clip is None or loss not in OF_TWO_CLASSES or labels is None:
        return ""
    rate = float((labels == 1).mean())
    clipped = 1 - plan.adaptive_clip.quantile
    # The evaluation set stands for the dataset, whose labels nobody may count for free
    if (rarer := min(rate, 1 - rate)) > _RARE * clipped:
        return ""
    return (
        f"the rarer label is {rarer:.0%} of the evaluation set, and the clip bound cuts {clipped:.0%} of the "
        "gradients, those of this label first"
    )


def _describe_time(seconds: float, rounds: int, records: int) -> str:
    """Say how long a job takes one core of a helper, whose rounds run at the same time at both."""
    size, unit = next(
        (seconds / length, name) for name, length in _LENGTHS if seconds >= length or length == 1
    )
    return (
        f"{rounds:,} {'round' if rounds == 1 else 'rounds'} of {records:,} reports take a helper up to "
        f"{size:.3g} processor {unit}, about twice what it will be; its cores share a round's reports"
    )


def _describe_sharing(room: JobLimits) -> str:
    """Name what shares the budget."""
    jobs = "the job" if room.jobs == 1 else f"all {room.jobs} jobs"
    return jobs if room.tests is None else f"{jobs} and {plural(room.tests.count, 'evaluation')}"


def _describe_division(plan: Plan, room: JobLimits, *, is_python: bool) -> Iterator[str]:
    """Yield what each job and each evaluation gets of a budget that is divided."""
    best, planned = plan.recommended, plan.recommended.cost.planned
    yield (
        f"divided by the accountant, of {room.dataset_size:,} reports: {_describe_sharing(room)}"
        f" cost {_both(planned)}"
    )
    yield (
        f"  each job: noise {best.noise_multiplier:.4g}, epsilon {_both(best.cost.alone)} alone"
        + (f", worth {best.steps_worth:.3g} steps" if plan.is_norm_known else "")
    )
    if (tests := room.tests) is not None:
        asking = (
            f"client.evaluate(epsilon={tests.epsilon:g})"
            if is_python
            else f"adserver evaluate --epsilon {tests.epsilon:g}"
        )
        yield (
            f"  each evaluation: {asking}; all of them cost {_both(tests.cost)}, and each count of the "
            f"histogram is off by {tests.count_noise:,.3g} reports"
        )


def _describe_general_path(general: GeneralPath, best: Option) -> Iterator[str]:
    """Yield why a model is not exact, and what that costs."""
    yield from describe_path(general.reasons)
    if best.core_seconds is not None:
        yield _describe_time(best.core_seconds / 2, best.rounds, round(best.batch_size))
    # Public samples cost nothing where there are none
    if general.noise_factor is not None and general.noise_factor > _SEARCHED:
        yield f"on the exact path the marked job would need 1/{general.noise_factor:.3g} of the noise"


def _describe_comparison(compared: Comparison, plan: Plan, *, is_python: bool) -> Iterator[str | _Table]:
    """Yield the marked job with either noise, and larger batches where the second budget binds.

    Nothing is said of a kind of noise that is not possible: the one that was asked for is.
    """
    shown = [option for option in (compared.independent, compared.correlated) if option is not None]
    if compared.larger:
        yield (
            "the budget against the ad server with one helper binds, where samples hide nothing: the marked "
            "job with either noise and with larger batches, each with the least noise that fits:"
        )
    elif len(shown) > 1:
        yield "the marked job with either noise, each the least that fits:"
    else:
        return
    yield _Table(
        ("noise", "batch", "multiplier", "a step", "epsilon", "dataset", *_heads_of_worth(plan)),
        [
            (
                "correlated" if option.carried else "independent",
                f"{option.batch_size:,.0f}",
                f"{option.noise_multiplier:.4g}",
                f"{option.noise_norm:.3g}",
                _both(option.cost.alone),
                _both(option.cost.together),
                *_worth(option, plan),
            )
            for option in (*shown, *compared.larger)
        ],
    )
    yield (
        "a step: the length of both helpers' noise on its mean gradient; of correlated noise, as for ratio,"
        " of independent noise that leaves the weights the same error. Correlated noise has one clip bound in"
        f" all rounds ({_name_setting('clip_norm', is_python=is_python)}) and needs a model on the exact path"
    )


def _row(option: Option, plan: Plan) -> tuple[object, ...]:
    cost = option.cost
    return (
        "▶" if option == plan.recommended else "",
        option.rounds,
        f"{option.batch_size:,.0f}",
        f"{option.noise_multiplier:.4g}" + (" correlated" if option.carried else ""),
        _both(cost.alone),
        _both(cost.together),
        *_worth(option, plan),
        option.limit.value,
    )


def _heads_of_worth(plan: Plan) -> tuple[str, ...]:
    """Return the heads of noise over signal, and of what a plan has if it knows rate, model or gradient."""
    best = plan.recommended
    return (
        "ratio" if plan.is_norm_known else "least ratio",
        *(("weights",) if best.weight_noise is not None else ()),
        *(("core s",) if best.core_seconds is not None else ()),
        *(("worth",) if plan.is_norm_known else ()),
    )


def _worth(option: Option, plan: Plan) -> tuple[str, ...]:
    """Return the cells under `_heads_of_worth`."""
    worth = option.steps_worth if plan.is_norm_known else None
    known = (option.noise_to_signal, option.weight_noise, option.core_seconds, worth)
    return tuple(f"{one:.3g}" for one in known if one is not None)


def _both(epsilons: Epsilons | Task) -> str:
    """Format both epsilons: against the ad server (against the ad server with one helper)."""
    alone, colluding = (
        (epsilons.epsilon, epsilons.collusion_epsilon)
        if isinstance(epsilons, Task)
        else (epsilons.ad_server, epsilons.colluding)
    )
    return f"{number(alone)} ({number(colluding)})"
