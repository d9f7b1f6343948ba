"""Training from Python: plan, submit and follow jobs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from adserver.budgets.asked_epsilon import check_epsilon
from adserver.client.choices import check_numbers, check_panels, choose, suggest_names
from adserver.client.connection import Connection, id_of, warn_afterwards
from adserver.client.job import Job
from adserver.records.defaults import MOMENTUM, TEST_SHARE
from adserver.records.optimizer_kinds import ScheduleKind
from adserver.records.submissions import AnySubmission, PlanConstraints, PlanRequest, Submission
from adserver.records.training_plan import Schedule
from adserver.records.typed_ids import whole_job_id
from adserver.store.datasets import Dataset
from adserver.training.as_onnx import as_onnx, warn_of_modes
from adserver.training.default_optimizer import read_steps
from adserver.training.pipeline import names_of_outputs
from adserver.training.submission import check_settings
from adserver.views.job_comparison import ComparedJobs, compare_jobs
from adserver.views.plan import Remark, ShownPlan, remarks_of_job
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask
from maskedlark.model.heads import Heads, trained_loss
from maskedlark.model.losses import Loss
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.sampling import Sampling, StepNoise
from maskedlark.reports.task import Task

if TYPE_CHECKING:
    from adserver.training.rehearsed import Rehearsal


_EPSILONS: Final = (0.5, 1.0, 3.0)
# The output of a single head that names none, before the model is exported
_NOT_KNOWN: Final = "output"
# Losses that the default network has outputs for
_OF_DEFAULT: Final = (Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, Loss.CROSS_ENTROPY)
# What a job of the default network has by its own rule, as it is where nobody names it
_BY_RULE_OF_DEFAULT: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("optimizer", "schedule", "clip_norm", "adaptive_clip", "carried"), None),
    **dict.fromkeys(("is_clip_per_layer", "is_sample_public"), False),
    **dict.fromkeys(("train", "freeze"), ()),
    "noise": StepNoise.INDEPENDENT,
}


class Training(Connection):
    """What a client does with jobs."""

    @suggest_names
    def plan(
        self,
        model: Any = None,
        *,
        loss: str | Sequence[Mapping[str, Any]] | None = None,
        num_parameters: int | None = None,
        rounds: int | None = None,
        batch_size: float | None = None,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        gradient_norm: float | None = None,
        noise: str = StepNoise.INDEPENDENT.value,
        momentum: float = MOMENTUM,
        learning_rate: float | None = None,
        schedule: Schedule | str | None = None,
        clip_norm: float | None = None,
        sampling: str = Sampling.ALLOCATION.value,
        public_samples: bool = False,
        train: Sequence[str] = (),
        freeze: Sequence[str] = (),
        dataset: Dataset | str = "",
        reports: int | None = None,
        task: str = "",
        check_columns: bool = True,
        jobs: int = 1,
        tests: int = 0,
        test_share: float = TEST_SHARE,
    ) -> ShownPlan:
        """Return what fits a dataset's budgets, and how much noise: `adserver job plan --json`.

        A shell and a notebook show the job to train first, and the table of what else fits below it.

        It spends nothing. Give two of rounds, batch_size and noise_multiplier, and the third is found; give
        rounds alone, and the recommended job has rounds of all reports, as `train` has by itself; give none
        of them, and it is the job of `train`. With the `gradient_norm` that you expect of a round's mean
        gradient (an earlier job's curves have it), the job worth most steps is found, and what each job is
        worth; without it `noise_to_signal` is the least possible. Where the budgets leave the job less than
        its epsilon, `refusal` says so. `noise` is independent or correlated, which is fitted to the
        `momentum` of your optimizer; both are compared. With the `learning_rate` and its `schedule` the error
        of the weights is predicted. `train` and `freeze` choose parameters of the model. For a job on
        devices, pass its request to `server.plan`. The model's columns are checked as by `train`, and with a
        `loss` its outputs; what may be wrong is a UserWarning, and in `warnings`.

            client.plan(num_parameters=10_000, reports=50_000, epsilon=3.0, jobs=10, tests=50)

        divides a budget before anything is collected: into the noise of each of `jobs` equal jobs, and the
        epsilon of each of `tests` private evaluations, which together have `test_share` of it.

        Raises:
            InvalidModel, InvalidTask, JobRefused
        """
        check_numbers(
            num_parameters=num_parameters,
            rounds=rounds,
            batch_size=batch_size,
            noise_multiplier=noise_multiplier,
            epsilon=epsilon,
            gradient_norm=gradient_norm,
            momentum=momentum,
            learning_rate=learning_rate,
            clip_norm=clip_norm,
            reports=reports,
        )
        request = PlanRequest(
            loss=None if loss is None else _loss(loss),
            are_columns_checked=check_columns,
            num_parameters=num_parameters,
            wish=PlanConstraints(rounds=rounds, batch_size=batch_size, noise_multiplier=noise_multiplier),
            epsilon=epsilon,
            gradient_norm=gradient_norm,
            noise=choose(StepNoise, "noise", noise),
            momentum=momentum,
            is_allocated=choose(Sampling, "sampling", sampling) is Sampling.ALLOCATION,
            is_sample_public=public_samples,
            learning_rate=learning_rate,
            schedule=_schedule(schedule) or Schedule(kind=ScheduleKind.COSINE),
            clip_norm=clip_norm,
            train=tuple(train),
            freeze=tuple(freeze),
            dataset=id_of(dataset),
            reports=reports,
            task=task,
            jobs=jobs,
            tests=tests,
            test_share=test_share,
        )
        # Last, since it takes seconds
        if model is not None:
            encoded = as_onnx(model, self._width(id_of(dataset), task, reports))
            found = None if loss is None else _loss(loss, encoded)
            request = replace(request, model=encoded, loss=found)
        planned = self.server.plan(request)
        planned = planned._replace(warnings=(*warn_of_modes(model), *planned.warnings))
        _tell((Remark(text=line, is_warning=True) for line in planned.warnings), False)
        return ShownPlan(planned, request)

    def _encoder_of(self, task_id: bytes) -> Encoder | None:
        """Return the encoder of a task, if it names one."""
        return self.server.encoder(task_id.hex())

    def _width(self, dataset: str, task: str, reports: int | None) -> int:
        """Return the number of features of the task that a plan is of."""
        found = self._task_of(dataset) if reports is None else self.server.task(task).stored.bundle.task
        return found.num_features

    @suggest_names
    def train(
        self,
        model: Any = None,
        *,
        loss: str | Sequence[Mapping[str, Any]],
        learning_rate: float | None = None,
        rounds: int | None = None,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        until_budget: bool = False,
        batch_size: float | None = None,
        optimizer: str | None = None,
        momentum: float = MOMENTUM,
        schedule: Schedule | str | None = None,
        eval_set: str | Path | None = None,
        eval_every: int | None = None,
        noise: str = StepNoise.INDEPENDENT.value,
        carried: int | None = None,
        sampling: str = Sampling.ALLOCATION.value,
        public_samples: bool = False,
        clip_norm: float | None = None,
        adaptive_clip: AdaptiveClip | None = None,
        per_layer_clip: bool = False,
        train: Sequence[str] = (),
        freeze: Sequence[str] = (),
        standardise: bool = True,
        check_columns: bool = True,
        dataset: Dataset | str = "",
        name: str = "",
        note: str = "",
        wait: bool = True,
        progress: bool = True,
    ) -> Job:
        """Train a model on a dataset's reports. `adserver serve` runs the job, also when this process ends.

        Args:
            model: An ONNX file or its bytes, a torch module, or a fitted linear model or MLP of scikit-learn;
                training begins at its weights. None: quickstart's default network, by its own rule of rate
                and clip; the task must have an encoder, and eval_set and epsilon must be given.
            loss: A name of `maskedlark.model.losses.Loss`; or heads, each a dict of `targets` (one for each
                label code, None where the code says nothing), `output` if the model has several and, as
                needed, `loss`, `weights` and `name`. One head weighs two classes, as `pos_weight` does:
                `[{"targets": [0, 1], "weights": [1, 5]}]`.
            learning_rate: Of the optimizer, whose gradient is the mean over the clip bound where the clip is
                adaptive. Without it the rate that quickstart's rule gives for the dataset's reports and the
                epsilon; it is shown with `progress`.
            rounds: Optimizer steps; without them 120, and 300 for an untrained hidden layer without tables
                of words, with many reports.
            epsilon: What it may cost against this ad server; decides the noise.
            noise_multiplier: Instead of epsilon: each helper's noise over the clip norm.
            until_budget: Instead of rounds: as many as the budget holds at the noise multiplier.
            batch_size: Expected reports in a round; by default the whole dataset.
            optimizer: sgd, momentum, adam or adagrad; by default momentum. Others have no rule for the rate.
            momentum: Of momentum.
            schedule: How the learning rate changes: constant, cosine, step or linear-warmup; or a `Schedule`
                with the numbers of its kind. By default cosine, or constant if you name optimizer and rate.
            eval_set: An .npz of features and labels of your own, for the curves.
            eval_every: Rounds between evaluations.
            noise: independent, or correlated: each round takes a part of the last one's noise out again.
            carried: Of correlated noise, how many 64ths; by default what fits the optimizer best.
            sampling: allocation: each report takes part in one round of an epoch; poisson: reports are drawn
                anew in each round.
            public_samples: Charge the job as if the samples were public; the general path requires it.
            clip_norm: The largest clip bound, at most the task's; without `adaptive_clip` the bound of all
                rounds.
            adaptive_clip: How the clip bound follows a quantile of the gradients' norms; by default the
                quantile .9, unless clip_norm, per_layer_clip or correlated noise asks for one bound.
            per_layer_clip: Clip each layer's gradient by itself.
            train: The parameters to train, by name or pattern such as `head.*`; by default all.
            freeze: Parameters among them that keep the values that the model has.
            standardise: Whether features of an untrained model are centred and scaled by the eval_set, and
                the logit of two classes begins at its base rate. Weights that know something of its labels
                stay as they are.
            check_columns: Whether a model is refused that looks up numbers, or one byte of an id, as rows of
                a table, by the task's encoder.
            dataset: As `seal` returns it, or the start of its id; not needed if there is only one.
            name: What you call the job; helpers do not see it.
            note: What you want to remember of it; helpers do not see it.
            wait: Wait until the job stops, as `Job.wait`.
            progress: Show a bar while waiting, and before it which path helpers compute the model on, and
                which columns of the task's encoder it reads as another kind. Without it what should be acted
                on is a UserWarning.

        Raises:
            InvalidModel, InvalidTask, JobRefused: what is wrong, before anything is spent.
        """
        check_panels(eval_set=eval_set)
        asked = _submission(
            loss=loss,
            learning_rate=learning_rate,
            rounds=rounds,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            until_budget=until_budget,
            batch_size=batch_size,
            optimizer=optimizer,
            momentum=momentum,
            schedule=schedule,
            eval_set=eval_set,
            eval_every=eval_every,
            noise=noise,
            carried=carried,
            sampling=sampling,
            public_samples=public_samples,
            clip_norm=clip_norm,
            adaptive_clip=adaptive_clip,
            per_layer_clip=per_layer_clip,
            train=train,
            freeze=freeze,
            standardise=standardise,
            check_columns=check_columns,
            dataset=dataset,
            name=name,
            note=note,
        )
        task = self._task_of(asked.dataset)
        if model is None:
            job, remarks = self._submit_default(asked, task)
        else:
            check_settings(asked, task)
            # Last, since it takes seconds
            submission = _with_model(asked, as_onnx(model, task.num_features), loss)
            job, remarks = self._submit(submission)
        _tell([*_remarks_of_modes(model), *remarks], progress)
        return job.wait(progress=progress) if wait else job

    def _submit_default(self, asked: Submission, task: Task) -> tuple[Job, list[Remark]]:
        """Submit a job of the default network by its own rule; return it with what to say of it.

        Raises:
            InvalidTask: something that the rule goes by is missing, or something that it chooses is named.
        """
        from adserver.training.default_network import choose_default, submit_default
        from adserver.training.eval_set import read_eval_set

        eval_set, epsilon, loss = _read_default(asked, task)
        check_settings(asked, task)
        encoder = self._encoder_of(task.task_id)
        reports = self.server.dataset(asked.dataset).size
        made = choose_default(
            task,
            encoder,
            read_eval_set(eval_set),
            reports=reports,
            epsilon=epsilon,
            outputs=task.labels.size if loss is Loss.CROSS_ENTROPY else 1,
            loss=loss,
        )
        _, submission = submit_default(asked, task, made, reports=reports, epsilon=epsilon)
        return self._submit(submission, is_default=True)

    def _submit(self, submission: AnySubmission, *, is_default: bool = False) -> tuple[Job, list[Remark]]:
        """Submit a job; return it with what to say of it."""
        made = self.server.submit(submission)
        remarks = remarks_of_job(
            submission, made.plan, self._encoder_of, is_python=True, is_default=is_default
        )
        return Job(job_id=made.job_id, at=self.server), list(remarks)

    @suggest_names
    def rehearse(
        self,
        model: Any,
        examples: str | Path,
        *,
        reports: int | None = None,
        epsilons: Sequence[float] | float = (),
        learning_rates: Sequence[float] | float = (),
        seeds: int = 4,
        workers: int = 1,
        warm: bool = False,
        with_default: bool = True,
        progress: bool = True,
        **training: Any,
    ) -> "Rehearsal":
        """Train a job in the clear on labelled examples: `adserver job rehearse`. It spends nothing.

            client.rehearse(module, "panel.npz", loss="mse", epsilons=[1, 3], learning_rates=[0.3, 1, 3])

        Args:
            model: As of `train`; or the whole job as a `Submission`.
            examples: An .npz of features and labels of your own.
            reports: How many reports the dataset is planned to have; by default as many as the sealed one.
            epsilons: What the job may cost; each decides its noise. By default the job's `epsilon`; without
                one .5, 1 and 3.
            learning_rates: Those to try in addition to the job's. Without any: the rule's rate, a third of it
                and three times it.
            seeds: How often each training is repeated, with another quarter of the examples to test: four
                test with all of them, and two can hardly tell a gain from chance.
            workers: Processes to train in; the result does not depend on it.
            warm: Also begin each job at weights trained on the examples; `Rehearsal.warm_model` has such
                weights, as an ONNX file for `train` or `submit`.
            with_default: Also train quickstart's default network at each epsilon, to see whether the model
                earns its place: one training more for each seed.
            progress: Show a bar on a terminal or in a notebook. Without it warnings are UserWarnings.
            training: The settings of `train`, such as loss; or, instead of a dataset, the `task` by the start
                of its id.

        Raises:
            InvalidModel, InvalidTask, JobRefused
        """
        from adserver.training.eval_set import read_eval_set
        from adserver.training.rehearsal import Wish, add_own_rate, check_wish, rehearse
        from adserver.views.rehearsal import remarks_of_rehearsal, training_progress

        if not isinstance(rate := training.get("learning_rate"), float | int | None):
            raise InvalidTask(
                f"learning_rate is {rate!r}: expected one number; give those to compare as learning_rates="
            )
        check_numbers(reports=reports, seeds=seeds, workers=workers)
        check_panels(examples=examples, eval_set=training.get("eval_set"))
        asked = model if isinstance(model, Submission) else None
        if asked is not None and training:
            raise InvalidTask(f"a Submission has its own settings: leave out {', '.join(training)}")
        given = training if asked is None else {"task": asked.task, "dataset": asked.dataset}
        of, dataset = given.get("task", ""), id_of(given.get("dataset", ""))
        # Before anything is collected there is a task but no dataset
        is_planned = bool(of) or reports is not None
        task = self.server.task(of).stored.bundle.task if is_planned else self._task_of(dataset)
        submission = asked or suggest_names(_submission, "rehearse")(**training)
        of_job = submission.epsilon
        wish = Wish(
            reports=self.server.dataset(dataset).size if reports is None else reports,
            epsilons=_tuple(epsilons) or (_EPSILONS if of_job is None else (of_job,)),
            learning_rates=add_own_rate(submission, _tuple(learning_rates)),
            seeds=seeds,
            workers=workers,
            is_warm=warm,
            has_default=with_default,
        )
        found = read_eval_set(Path(examples).read_bytes())
        check_wish(wish, submission, task, found)
        if asked is None:  # last, since it takes seconds
            submission = _with_model(submission, as_onnx(model, task.num_features), training["loss"])
        encoder = None if task.encoder is None else self._encoder_of(task.task_id)
        _tell(_remarks_of_modes(model), progress)
        _tell(remarks_of_rehearsal(submission, task, found, encoder, seeds=seeds), progress)
        with training_progress("rehearsing", is_shown=progress) as show:
            return rehearse(submission, task, found, wish, show, encoder=encoder)

    @suggest_names
    def submit(self, submission: AnySubmission, *, wait: bool = False, progress: bool = True) -> Job:
        """Submit a job of any kind: over a dataset, on devices with helpers, or on devices without.

        Args:
            submission: A request of `adserver.records.submissions`.
            wait: Wait until the job stops, as `Job.wait`.
            progress: As of `train`.

        Raises:
            InvalidModel, InvalidTask, JobRefused: what is wrong, before anything is spent.
        """
        job, remarks = self._submit(submission)
        _tell(remarks, progress)
        return job.wait(progress=progress) if wait else job

    def job(self, job: str | bytes = "") -> Job:
        """Return a job by its id, or the start of its id or name; not needed if there is only one.

        Raises:
            JobRefused(UNKNOWN_JOB)
        """
        named = job.hex() if isinstance(job, bytes) else job
        return Job(job_id=self.server.job(named).job_id, at=self.server)

    def close_lost_job(self, job: str | bytes) -> int:
        """Close a job at both helpers that this ad server no longer has, as after a backup was restored.

        Its unused budget is released; return the number of rounds that stay charged.

        Args:
            job: Its whole id.

        Raises:
            JobRefused(UNKNOWN_JOB, WRONG_STATE): no helper knows it; or this ad server has it: cancel it.
        """
        return self.server.close_lost_job(job if isinstance(job, bytes) else whole_job_id(job))

    def compare_jobs(self, *jobs: str) -> ComparedJobs:
        """Return jobs side by side, as `adserver job compare --json` does: a list of dicts, for a frame.

        A shell and a notebook show it as a table.

        Args:
            jobs: The starts of their ids or names; by default all jobs.

        Raises:
            JobRefused(UNKNOWN_JOB)
        """
        return ComparedJobs(compare_jobs(self.server, jobs))

    def jobs(self) -> list[Job]:
        """Return all jobs, oldest first."""
        return [Job(job_id=one.job_id, at=self.server) for one in self.server.jobs()]


def _read_default(asked: Submission, task: Task) -> tuple[bytes, float, Loss]:
    """Return the evaluation set, the epsilon and the loss that the default network is chosen by.

    Raises:
        InvalidTask: something that the rule goes by is missing, or something that it chooses is named.
    """
    if task.mechanism is Mechanism.NONE:
        raise InvalidTask(
            "model is None, and the default network is chosen by epsilon, while the task adds no noise: give "
            "a model"
        )
    eval_set, epsilon, loss = asked.eval_set, asked.epsilon, trained_loss(asked.loss)
    if eval_set is None or epsilon is None or task.encoder is None or loss not in _OF_DEFAULT:
        raise InvalidTask(
            "model is None, and the default network requires a task with an encoder, eval_set=FILE, "
            f"epsilon= and loss= one of {', '.join(_OF_DEFAULT)}: give these, or a model"
        )
    check_epsilon(epsilon, task)
    if any(getattr(asked, name) != default for name, default in _BY_RULE_OF_DEFAULT.items()):
        raise InvalidTask(
            "model is None, and the default network has rate, clip bound, noise and samples of its own: "
            "leave out learning_rate, optimizer, schedule, clip_norm, adaptive_clip, per_layer_clip, "
            "noise, carried, public_samples, train and freeze, or give a model"
        )
    return eval_set, epsilon, loss


def _tuple(given: Sequence[float] | float) -> tuple[float, ...]:
    return (given,) if isinstance(given, float | int) else tuple(given)


def _submission(
    *,
    loss: str | Sequence[Mapping[str, Any]],
    learning_rate: float | None = None,
    rounds: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    until_budget: bool = False,
    batch_size: float | None = None,
    optimizer: str | None = None,
    momentum: float = MOMENTUM,
    schedule: Schedule | str | None = None,
    eval_set: str | Path | None = None,
    eval_every: int | None = None,
    noise: str = StepNoise.INDEPENDENT.value,
    carried: int | None = None,
    sampling: str = Sampling.ALLOCATION.value,
    public_samples: bool = False,
    clip_norm: float | None = None,
    adaptive_clip: AdaptiveClip | None = None,
    per_layer_clip: bool = False,
    train: Sequence[str] = (),
    freeze: Sequence[str] = (),
    standardise: bool = True,
    check_columns: bool = True,
    task: str = "",
    dataset: Dataset | str = "",
    name: str = "",
    note: str = "",
) -> Submission:
    """Return the request of `Client.train`'s arguments, as yet without a model."""
    check_numbers(
        learning_rate=learning_rate,
        epsilon=epsilon,
        rounds=rounds,
        batch_size=batch_size,
        noise_multiplier=noise_multiplier,
        momentum=momentum,
        clip_norm=clip_norm,
        eval_every=eval_every,
        carried=carried,
    )
    steps, rates = read_steps(optimizer, learning_rate, momentum, _schedule(schedule))
    return Submission(
        model=b"",
        loss=_loss(loss),
        rounds=rounds,
        is_until_budget=until_budget,
        batch_size=batch_size,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        optimizer=steps,
        schedule=rates,
        eval_set=None if eval_set is None else Path(eval_set).read_bytes(),
        eval_every=eval_every,
        is_allocated=choose(Sampling, "sampling", sampling) is Sampling.ALLOCATION,
        is_sample_public=public_samples,
        noise=choose(StepNoise, "noise", noise),
        carried=carried,
        clip_norm=clip_norm,
        adaptive_clip=adaptive_clip,
        is_clip_per_layer=per_layer_clip,
        train=tuple(train),
        freeze=tuple(freeze),
        is_standardised=standardise,
        are_columns_checked=check_columns,
        task=task,
        dataset=id_of(dataset),
        name=name,
        note=note,
    )


def _with_model(asked: Submission, model: bytes, loss: str | Sequence[Mapping[str, Any]]) -> Submission:
    """Return a request with its model, whose outputs the heads of a loss may leave out."""
    return replace(asked, model=model, loss=_loss(loss, model))


def _schedule(given: Schedule | str | None) -> Schedule | None:
    """Return the schedule of a kind's name, or as it was given."""
    if isinstance(given, str):
        return Schedule(kind=choose(ScheduleKind, "schedule", given))
    return given


def _remarks_of_modes(model: Any) -> list[Remark]:
    """Return what a torch module does only while torch trains it."""
    return [Remark(text=line, is_warning=True) for line in warn_of_modes(model)]


def _tell(remarks: Iterable[Remark], progress: bool) -> None:
    """Print remarks to standard error, as the bar; without it warn the caller's caller of what matters.

    To be called by a method that `suggest_names` wraps.
    """
    for remark in remarks:
        if progress:
            typer.echo(str(remark), err=True)
        elif remark.is_warning:
            warn_afterwards(remark.text, stacklevel=4)


def _loss(given: Any, model: bytes | None = None) -> str | Heads:
    """Return the name of one loss, or heads; one that names no output reads the only one of the model.

    Before there is a model, a single head may leave its output open.

    Raises:
        InvalidTask: it is neither, such as an object of torch.
        InvalidModel(UNKNOWN_LOSS)
    """
    if isinstance(given, str):
        return Loss.named(given)
    if not isinstance(given, Sequence):
        raise InvalidTask(
            f"loss is of type {type(given).__name__}: expected a name ({', '.join(Loss)}), or a list of heads"
        )
    if model is None:
        return Heads.of(given, (_NOT_KNOWN,) if len(given) == 1 else ())
    return Heads.of(given, names_of_outputs(model))
