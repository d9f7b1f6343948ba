"""`adserver aggregate`: sums, counts, means, histograms and quantiles of a dataset's reports, by groups."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adserver.cli.options import JsonOption, TaskOption, TracesOption, release_options
from adserver.cli.target import connected_server_of, trace
from adserver.records.typed_ids import the_only
from adserver.views.printing import check_parts, print_json
from maskedlark.errors import JobReason, JobRefused, MaskedLarkError
from maskedlark.escape import escape
from maskedlark.observability.traces import Traces
from maskedlark.terminal.options import option, panel, takes

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer
    from adserver.measuring.result import AggregateResult
    from maskedlark.reports.measurement import Measurement

_what = panel("The query")
_groups = panel("Groups")


@takes(server=connected_server_of, charged=release_options)
def _aggregate_command(
    *,
    server: "AdServer",
    value: Annotated[list[str] | None, _what("A value to sum, or count; repeatable.")] = None,
    mean: Annotated[
        list[str] | None,
        _what(
            "A value whose mean to show, over the reports or over those that another value counts; "
            "repeatable.",
            metavar="VALUE[:COUNT]",
        ),
    ] = None,
    histogram: Annotated[
        list[str] | None, _what("A value with buckets whose histogram to show; repeatable.")
    ] = None,
    quantile: Annotated[
        list[str] | None,
        _what(
            "A quantile of a value with buckets, for example age:0.5, over the reports or over those that "
            "another value counts; repeatable.",
            metavar="VALUE[:COUNT]:SHARE",
        ),
    ] = None,
    group_by: Annotated[
        str, _groups("Keys to group by, separated by commas, the coarsest first.", metavar="KEY,...")
    ] = "",
    where: Annotated[
        list[str] | None,
        _groups("Count only reports that meet this condition, KEY=VALUE; repeatable.", metavar="KEY=VALUE"),
    ] = None,
    domain: Annotated[
        Path | None,
        _groups(
            'JSON file with the values of keys: {"KEY": [values]} or {"KEY": {"first": code, "last": code}}.',
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    discover: Annotated[
        bool, _groups("First find the values of keys without a domain, privately.", "--discover")
    ] = False,
    roll_up: Annotated[
        bool, _groups("Also release coarser groups and the total, so that the parts add up.", "--roll-up")
    ] = False,
    charged: dict[str, Any],
    plan: Annotated[
        bool, option("Print the cost and how wide intervals will be, and charge nothing.", "--plan")
    ] = False,
    again: Annotated[
        str,
        option(
            "The start of the id of an earlier query, to show its answer again at no cost. Add --mean or "
            "--quantile for those of its sums and histograms, and --domain to name groups that were "
            "discovered; nothing else is asked with it.",
            metavar="ID",
        ),
    ] = "",
    out: Annotated[
        list[Path] | None,
        option(
            "Also write the result to this .json, .csv, .parquet or .png file, whose folder is made if it is "
            "missing; repeatable."
        ),
    ] = None,
    task: TaskOption = "",
    traces: TracesOption = Traces.NONE,
    all_rows: Annotated[bool, option("Also show groups that have too few reports.", "--all-rows")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a dataset: sums of values over groups of reports, charged to its privacy budget."""
    from adserver.measuring.domains import load_domains
    from adserver.measuring.group_table import MOST_ROWS
    from adserver.measuring.request import name_groups
    from adserver.views.query import ENDINGS, Statistic, json_of, print_groups, summary_lines, write_result

    # Before anything is charged: a release that cannot be written would be paid for all the same
    check_parts(out or (), ENDINGS, "a result is")
    if plan and out:
        raise typer.BadParameter("--out takes an answer, and --plan asks for none: leave one of them out")
    if again:
        _check_only_shown(
            value=value,
            histogram=histogram,
            group_by=group_by,
            where=where,
            discover=discover,
            roll_up=roll_up,
            epsilon=charged["epsilon"],
            query_id=charged["query_id"],
            plan=plan,
        )
    _check_shares(quantile or ())
    with trace(server, "aggregate", traces):
        result = server.repeat_aggregate(again) if again else None
        if task and not again:
            charged["dataset"] = _dataset_of(server, task, charged["dataset"])
        is_read = bool(mean or quantile or (again and domain))
        measurement = _measurement_of(server, result, charged["dataset"]) if is_read else None
        means, quantiles, filled = _read_off(measurement, mean or (), quantile or ())
        if result is None:
            asked: dict[str, Any] = {
                "histograms": _distinct([*(histogram or ()), *(name for name, *_ in quantiles)]),
                **_groups_of(server, charged["dataset"], group_by, where or ()),
                "domains": load_domains(domain),
                "discover": discover,
                "roll_up": roll_up,
            }
            values = _values_of(value or (), means, quantiles)
            if plan:
                _print_plan(server, values, {**asked, **charged}, as_json=as_json)
                return
            result = _ask(server, values, {**asked, **charged})
        elif measurement is not None:
            result = name_groups(result, measurement, load_domains(domain))
    # Once each: a statistic has one name in files
    statistics = [
        Statistic.mean(result.title_of(name), result.title_of(over), is_zero_elsewhere=(name, over) in filled)
        for name, over in dict.fromkeys(means)
    ]
    statistics += [
        Statistic.quantile(result.title_of(name), share, result.title_of(over))
        for name, over, share in dict.fromkeys(quantiles)
    ]
    # Shown first: it was charged, and a folder may take no file
    if as_json:
        print_json(json_of(result, statistics))
    else:
        print_groups(
            result,
            statistics,
            is_all_shown=all_rows,
            most_rows=None if all_rows else MOST_ROWS,
            without=_values_without_buckets(result, [name for name, *_ in quantiles], histogram or ()),
        )
        for line in (f"query {result.query_id}", *summary_lines(result, statistics)):
            typer.echo(escape(line))
        if again and not statistics:
            typer.echo(
                "means and quantiles of this answer cost nothing: add --mean VALUE or --quantile VALUE:SHARE"
            )
    for path in out or ():
        write_result(result, path, statistics)


def _measurement_of(
    server: "AdServer", result: "AggregateResult | None", dataset: str
) -> "Measurement | None":
    """Return what the task of an answer, or else of a dataset, declares."""
    task_id = result.task_id if result else server.dataset(dataset).task_id.hex()
    return server.task(task_id).stored.bundle.task.measurement


def _groups_of(
    server: "AdServer", dataset: str, group_by: str, where: Sequence[str]
) -> dict[str, list[str] | dict[str, str]]:
    """Return the keys to group by, and the conditions, that were typed."""
    from adserver.records.plain_names import split_names

    keys = set[str]()
    # The name of a column may hold what separates names
    if "," in group_by or any(one.count("=") > 1 for one in where):
        # What is wrong with the dataset is said by asking the query
        with suppress(MaskedLarkError):
            measurement = _measurement_of(server, None, dataset)
            declared = () if measurement is None else measurement.keys
            keys = {name for one in declared for name in (one.name, one.title) if name}
    return {
        "group_by": [name for name in split_names(group_by, ",", keys) if name],
        "where": _conditions(where, keys),
    }


def _read_off(
    measurement: "Measurement | None", mean: Sequence[str], quantile: Sequence[str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str, float]], frozenset[tuple[str, str]]]:
    """Return the means and quantiles that were typed, which are read off a sum or a histogram.

    Returns:
        The value of each mean with what counts the reports, the same of each quantile with its share, and
        those over the reports that have the value, as of `_check_gaps`.
    """
    from maskedlark.reports.measurement import COUNT

    known = {COUNT}
    if measurement is not None:
        known |= {name for one in measurement.values for name in (one.name, one.title) if name}
    quantiles = [_quantile(one, known) for one in quantile]
    means = [_value_and_count(one, known) for one in mean]
    # Each with the option that asks for it
    asked = {"--mean": means, "--quantile": [(name, over) for name, over, _ in quantiles]}
    filled = _check_gaps(measurement, asked)
    return (
        [(name, over or COUNT) for name, over in means],
        [(name, over or COUNT, share) for name, over, share in quantiles],
        filled,
    )


def _values_of(
    value: Sequence[str], means: Sequence[tuple[str, str]], quantiles: Sequence[tuple[str, str, float]]
) -> tuple[str, ...]:
    """Return all that is summed: a mean is read off a sum and a count, a quantile off a histogram."""
    from maskedlark.reports.measurement import COUNT

    counts = [over for _, over, _ in quantiles if over != COUNT]
    of_means = (name for pair in zip(*means, strict=True) for name in pair)
    return _distinct([*value, *of_means, *([*counts, COUNT] if counts else ())])


def _ask(server: "AdServer", values: Sequence[str], asked: Mapping[str, Any]) -> "AggregateResult":
    """Ask a query; say before if its answer will be noise, and after if one like it was asked before."""
    from adserver.client.measuring import note_earlier, warn_of_noise

    if noise := warn_of_noise(server, asked["dataset"], _foretold(values, asked)):
        typer.echo(f"warning: {escape(noise)}; --plan says so before a charge", err=True)
    result = server.aggregate(values=values, **asked)
    if earlier := note_earlier(server, result):
        typer.echo(f"note: {escape(earlier)}", err=True)
    return result


def _print_plan(
    server: "AdServer", values: Sequence[str], asked: Mapping[str, Any], *, as_json: bool
) -> None:
    """Print what a query will cost and how wide its intervals will be; exit with 1 if it would be refused."""
    from adserver.client.measuring import forecast_query
    from adserver.messages.query import AggregateForecastMessage

    forecast = forecast_query(server, asked["dataset"], _foretold(values, asked))
    if as_json:
        print_json(AggregateForecastMessage.of(forecast))
    else:
        for line in forecast.lines():
            typer.echo(escape(line))
    if forecast.refusal:
        raise typer.Exit(1)


def _dataset_of(server: "AdServer", task: str, dataset: str) -> str:
    """Return the id of a task's dataset: of the one that is named, or else of its only one.

    Raises:
        JobRefused(UNKNOWN_DATASET): the dataset is of another task, or none is named and the task has none or
            several.
    """
    if not dataset:
        known = [one for one in server.datasets() if one.task_id.hex().startswith(task.lower())]
        ids = [one.dataset_id for one in known if one.dataset_id is not None]
        # Of a task without one the refusal is that of another task's
        dataset = the_only(ids, "", JobReason.UNKNOWN_DATASET).hex() if ids else ""
    if not server.dataset(dataset).task_id.hex().startswith(task.lower()):
        raise JobRefused(
            JobReason.UNKNOWN_DATASET,
            "the dataset belongs to another task: give a dataset of the task, or leave out --task",
        )
    return dataset


def _foretold(values: Sequence[str], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a forecast takes of a query."""
    about = {name: said for name, said in asked.items() if name not in ("dataset", "query_id")}
    return {**about, "values": values}


def _values_without_buckets(
    result: "AggregateResult", quantiles: Sequence[str], histograms: Sequence[str]
) -> set[str]:
    """Return the titles of values whose histogram was asked for only since quantiles are read off it."""
    read, shown = ({result.title_of(name) for name in names} for names in (quantiles, histograms))
    return read - shown


def _check_only_shown(**asked: Any) -> None:
    """Refuse options of a new query where an earlier one is shown, which they would not change.

    Raises:
        typer.BadParameter: with the options.
    """
    if given := [f"--{name.replace('_', '-')}" for name, typed in asked.items() if typed]:
        raise typer.BadParameter(
            f"--again shows the answer to an earlier query, which {', '.join(given)} cannot change: leave "
            f"{'it' if len(given) == 1 else 'them'} out, or leave out --again to ask a new query"
        )


def _value_and_count(typed: str, known: Collection[str]) -> tuple[str, str]:
    """Return the value, and what counts its reports; empty if that is not said."""
    from adserver.records.plain_names import split_names

    name, *over = split_names(typed, ":", known)
    return name, ":".join(over)


def _check_shares(typed: Sequence[str]) -> None:
    """Refuse a quantile without a share, before a server is asked."""
    for one in typed:
        _quantile(one, ())


def _quantile(typed: str, known: Collection[str]) -> tuple[str, str, float]:
    of, _, share = typed.rpartition(":")
    name, over = _value_and_count(of, known)
    with suppress(ValueError):
        # Before anything is charged
        if 0 <= float(share) <= 1:
            return name, over, float(share)
    raise typer.BadParameter(
        f"--quantile is {typed!r}: expected VALUE:SHARE with a share from 0 to 1, for example age:0.5"
    )


def _check_gaps(
    measurement: "Measurement | None", asked: Mapping[str, Sequence[tuple[str, str]]]
) -> frozenset[tuple[str, str]]:
    """Refuse what is over all reports of a value that some of them lack and hold as 0, unless said so.

    Args:
        measurement: The task's; None if nothing was asked of it.
        asked: For each option, of each mean or quantile the value, and what counts the reports, as typed.

    Returns:
        Those of a value over the reports that have it, as typed.

    Raises:
        typer.BadParameter: with both that may be meant.
    """
    from adserver.records.plain_names import declared_name, filled_name, names_by_title
    from maskedlark.reports.measurement import COUNT

    if not any(asked.values()):
        return frozenset()
    values = () if measurement is None else measurement.values
    declared, titles = [value.name for value in values], names_by_title(values)
    over_filled = set()
    for typed, (name, over) in ((typed, one) for typed, ones in asked.items() for one in ones):
        filled = filled_name(declared_name(name, declared, titles), values)
        if filled is not None and not over:
            raise typer.BadParameter(
                f"{typed} is of {name!r}, which some reports do not have and hold as 0: write "
                f"{f'{name}:{filled}'!r} for those that have one, or {f'{name}:{COUNT}'!r} for all"
            )
        counted_by = declared_name(over, declared, titles)
        if filled is not None and counted_by == filled:
            over_filled.add((name, over))
        if typed == "--quantile" and over and counted_by != COUNT and measurement is not None:
            counts, of = (
                measurement.value(counted_by),
                measurement.value(declared_name(name, declared, titles)),
            )
            if counts is None or (counts.low, counts.high) != (0, 1) or (of and not of.low <= 0 <= of.high):
                raise typer.BadParameter(
                    f"{typed} is of {name!r} over {over!r}: expected a value of 0 or 1 that says which "
                    f"reports have {name!r}, which the others hold as 0"
                )
    return frozenset(over_filled)


def _conditions(typed: Sequence[str], known: Collection[str]) -> dict[str, str]:
    from adserver.records.plain_names import split_names

    found = dict[str, str]()
    for one in typed:
        name, *parts = split_names(one, "=", known)
        said = "=".join(parts)
        is_operator = name not in known and name[-1:] in ("!", "<", ">", "~")
        if not (name and said) or is_operator or said[0] == "=":
            raise typer.BadParameter(
                f"--where is {one!r}: expected KEY=VALUE, the only kind of condition; for all values "
                "but one, or for several, group by the key and add up"
            )
        if name in found:
            raise typer.BadParameter(
                f"--where names {name} twice, and a report has one value of a key: for several values group "
                "by the key and add up"
            )
        found[name] = said
    return found


def _distinct(names: list[str]) -> tuple[str, ...]:
    # Measures must be distinct, and a mean asks for sums that --value may name as well
    return tuple(dict.fromkeys(names))
