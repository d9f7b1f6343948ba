"""The text of `lark.toml`: every setting with a comment, for people to read and change."""

import json
from collections.abc import Mapping
from typing import Final

from adserver.quickstart.settings import (
    Measured,
    MeasureSettings,
    ModelSettings,
    Servers,
    Settings,
    TaskSettings,
    TrainingSettings,
)
from adserver.training.defaults import ROUNDS
from maskedlark.escape import DELETE, escape

_HEAD: Final = """\
# What `adserver quickstart run` does. Change a line and run it again: each run makes a new task, and leaves
# its results in runs/.
"""
_HALF: Final = "half of the budget is suggested, as no training shares it; the rest is for more queries"


def config_text(settings: Settings, notes: Mapping[str, str]) -> str:
    """Write `lark.toml` with comments: notes at values of `[data]`."""
    if settings.is_measured_alone:
        return _measuring_text(settings)
    data, task, model, training, measure, federated = (
        settings.data,
        settings.task,
        settings.model,
        settings.training,
        settings.measure,
        settings.federated,
    )
    return f"""\
{_HEAD}
[data]
csv = {_text(data.csv)}              # your table, seen from this folder; "" for the sample
label = {_text(data.label)}            # its column of labels
classes = {_list(data.classes, notes)}  # its classes, the predicted one second; other rows are left out
ignore = {_list(data.ignore, notes)}           # columns that are no features, whatever lists name them
dates = {_list(data.dates, notes)}            # columns of dates; "seen=dmy" 13/4/2026, "seen=mdy" 4/13/2026
codes = {_list(data.codes, notes)}            # columns of numbers that name things: read as words
words = {_list(data.words, notes)}            # columns of many words: "item=1000" or "item=planned" rows
publish = {_list(data.publish, notes)}          # columns of identifiers whose words may be public
not_people = {_list(data.not_people, {})}       # columns of ids that name no people, such as ZIP codes
panel = {data.panel:g}            # the share of rows (with person: of people) kept back to test the model

[task]                 # what both helpers sign, for good
{"" if federated.person else _person(task)}min_batch_size = {task.min_batch_size}
{_clip(settings)}
epsilon = {task.epsilon:g}            # the budget of a {_whose(settings)} against the ad server
collusion_epsilon = {task.collusion_epsilon:g}  # against the ad server together with one helper

[model]
onnx = {_text(model.onnx)}              # your model, seen from this folder; "" for one over your columns
{_standardise(model)}{_hidden(model.hidden)}
seed = {model.seed}

[training]
{_rounds(training.rounds)}
epsilon = {training.epsilon:g}            # what this job may cost
{"" if federated.person else _of_reports(training, measure)}
[federated]            # people's devices train on their own rows, and send no report; nothing without person
# Of [training], devices take rounds and epsilon only.
person = {_text(federated.person)}            # the column that names the person: one device each
sampling_rate = {federated.sampling_rate:g}      # of devices, in each of [training] rounds
epochs = {federated.epochs}             # a device's passes over its rows in a round
batch_size = {federated.batch_size}        # rows in a device's step
learning_rate = {federated.learning_rate:g}      # of those steps

{_servers(settings.servers)}"""


def _measuring_text(settings: Settings) -> str:
    """Write the settings of a project that trains nothing, and none of training."""
    data, task = settings.data, settings.task
    return f"""\
{_HEAD}
[data]
csv = {_text(data.csv)}              # your table, seen from this folder
label = ""             # its columns are measured and no model is trained, so every row is reported
publish = {_list(data.publish, {})}          # keys that look like identifiers, whose words may be public
not_people = {_list(data.not_people, {})}       # columns of ids that name no people, such as ZIP codes

[task]                 # what both helpers sign, for good
{_person(task)}min_batch_size = {task.min_batch_size}
epsilon = {task.epsilon:g}            # the budget of a {_whose(settings)} against the ad server
collusion_epsilon = {task.collusion_epsilon:g}  # against the ad server together with one helper

{_measure(settings.measure, f": {_HALF}")}
{_servers(settings.servers)}"""


def _servers(servers: Servers) -> str:
    return f"""\
[servers]              # on this machine alone, without TLS
helper_0 = {_text(servers.helper_0)}
helper_1 = {_text(servers.helper_1)}
adserver_grpc = {_text(servers.adserver_grpc)}
adserver_http = {_text(servers.adserver_http)}
dashboard = {_text(servers.dashboard)}  # `adserver quickstart up --dashboard` shows it; "" for none
"""


def _of_reports(training: TrainingSettings, measure: MeasureSettings) -> str:
    """Write the settings of jobs and queries over reports, which devices do not send."""
    return f"""\
optimizer = {_text(training.optimizer)}
schedule = {_text(training.schedule)}
{_rate(training.learning_rate)}
# batch_size = 256     # expected reports in a round; without it, all of them
# loss = "cross_entropy"  # without it: by the labels and the model's outputs

{_measure(measure)}"""


def _measure(measure: MeasureSettings, why: str = "") -> str:
    return f"""\
[measure]              # sums, counts, means by groups; keys alone: counts; nothing without either
# values = [{{column = "revenue", most = 100}}]  # columns to sum; a row counts as 100 at most
# A suggested most has the least squared error, where (all) and each level of groups count alike.
# With quantiles = [0.5, 0.9] in an entry the median and the 0.9 quantile follow, for a part of epsilon.
values = {_format_measured(measure.values)}
keys = {_list(measure.keys, {})}              # columns to group by, the coarsest first
epsilon = {measure.epsilon:g}          # what this may cost{why}
"""


def _person(task: TaskSettings) -> str:
    most = task.rows_per_person
    said = "# rows_per_person = 4 " if most is None else f"rows_per_person = {most}"
    return f"""\
person = {_text(task.person)}            # a column of people: epsilons are then of a person, not of a row
{said} # the most that a person reports, which noise follows; without it: nine of ten rows stay
"""


def _whose(settings: Settings) -> str:
    return "person, over all rounds," if settings.person else "dataset"


def _clip(settings: Settings) -> str:
    reason = (
        "the most that a device changes the model in a round"
        if settings.federated.person
        else "a ceiling: the job's bound follows the gradients below it"
    )
    return f"clip_norm = {settings.task.clip_norm:g}         # {reason}"


def _standardise(model: ModelSettings) -> str:
    """Return the line on a model of a person's own; nothing without one."""
    if not model.onnx:
        return ""
    value = str(model.standardise).lower()
    return f"standardise = {value}     # an untrained one's features are centred and scaled by the panel\n"


def _hidden(widths: tuple[int, ...] | None) -> str:
    if widths is None:
        return "# hidden = [32]      # widths of hidden layers; without it: by the number of rows and columns"
    return f"hidden = [{', '.join(map(str, widths))}]"


def _rounds(rounds: int | None) -> str:
    if rounds is None:
        return f"# rounds = {ROUNDS}       # without it: so many, or by rows, epsilon and layers of your onnx"
    return f"rounds = {rounds}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return (
            "# learning_rate = 1  # of the gradient over the clip bound; without it: by rows, epsilon, model"
        )
    return f"learning_rate = {rate:g}"


def _format_measured(values: tuple[Measured, ...]) -> str:
    """Format a TOML list of tables, a line for each."""
    lines = [f"  {_table(one)},\n" for one in values]
    return f"[\n{''.join(lines)}]" if lines else "[]"


def _table(one: Measured) -> str:
    counts = f"word = {_text(one.word)}" if one.word else f"most = {one.bound:g}"
    shares = f", quantiles = [{', '.join(f'{share:g}' for share in one.quantiles)}]" if one.quantiles else ""
    return f"{{column = {_text(one.column)}, {counts}{shares}}}"


def _note(value: str, notes: Mapping[str, str]) -> str:
    # Escaped: a line break in a cell would end the comment and set a setting.
    return f"  # {escape(notes[value])}" if value in notes else ""


def _list(values: tuple[str, ...], notes: Mapping[str, str]) -> str:
    """Format a TOML list of strings: with a line for each value if one has a note."""
    if not any(value in notes for value in values):
        return f"[{', '.join(map(_text, values))}]"
    lines = [f"  {_text(value)},{_note(value, notes)}\n" for value in values]
    return f"[\n{''.join(lines)}]"


def _text(value: str) -> str:
    """Format a TOML string."""
    # JSON's strings are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace(DELETE, "\\u007f")
