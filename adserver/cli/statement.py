"""`adserver statement`: what both helpers say that each job and query cost, and signed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from adserver.cli.options import JsonOption
from adserver.cli.target import connected_server_of, trace
from adserver.views.printing import print_json, print_table, short
from maskedlark.errors import InvalidTask
from maskedlark.escape import escape
from maskedlark.terminal.options import option, takes
from maskedlark.terminal.plural import plural
from maskedlark.utc import format_utc

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer
    from maskedlark.releases.statement import Evidence

_COLUMNS: Final = (
    "kind", "id", "answers", "final", "noise", "epsilon before", "after", "with one helper before", "after",
    "charged at", "helpers",
)  # fmt: skip
TaskOption = Annotated[
    str, option("Start of the task's id.", "--task", metavar="ID", show_default="the only task")
]
_FINGERPRINT: Final = "FINGERPRINT"


@takes(server=connected_server_of)
def _list_command(*, task: TaskOption = "", server: "AdServer", as_json: JsonOption = False) -> None:
    """Ask both helpers what each job and query of a task cost, and check their signatures."""
    with trace(server, "list statements") as at:
        found = at.statements(task)
    if as_json:
        print_json([_facts(one) for one in found])
        return
    print_table(_COLUMNS, [_row(one) for one in found])


@takes(server=connected_server_of)
def _export_command(
    *,
    task: TaskOption = "",
    server: "AdServer",
    out: Annotated[Path, option("Folder for one file a release; older ones are replaced.", "--out")],
) -> None:
    """Write the evidence of each job and query of a task to a folder, for others to verify."""
    from maskedlark.runtime.durable_file import write_durably

    with trace(server, "export statements") as at:
        found = at.statements(task)
    out.mkdir(parents=True, exist_ok=True)
    for one in found:
        name = one.statements[0].statement
        path = out / f"{short(name.task_id)}-{name.kind}-{name.release_id.hex()}.json"
        write_durably(path, one.encode() + b"\n")
    typer.echo(
        f"{plural(len(found), 'file')} in {out}"
        if found
        else f"wrote no file to {out}: the helpers released nothing of this task yet"
    )


def _verify_command(
    *,
    files: Annotated[list[Path], typer.Argument(help="Files that `statement export` wrote.")],
    helper: Annotated[
        list[str] | None,
        option(
            "Fingerprint of a helper that you know (`lark-helper status`): refuse others; repeatable.",
            metavar=_FINGERPRINT,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify evidence offline: both helpers' signatures on the task, and each statement's.

    Without --helper it shows the helpers' identities, for you to compare.
    """
    known = {one.lower() for one in helper or ()}
    found = []
    for path in files:
        evidence = _read(path)
        _check_helpers(path, evidence, known)
        found.append(evidence)
    if as_json:
        print_json([_facts(one) for one in found])
        return
    for one in found:
        for name, value in (
            _facts(one) | {"charged_at": format_utc(one.statements[-1].statement.at)}
        ).items():
            typer.echo(f"{name:26}{escape(_text(value))}")
        typer.echo("the signatures hold\n")


def _read(path: Path) -> "Evidence":
    from maskedlark.releases.statement import Evidence

    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise InvalidTask(
            f"{path} is a folder: give the files that `adserver statement export` wrote there, "
            f"{path / '*.json'}"
        ) from None
    except OSError as error:
        raise InvalidTask(f"cannot read {path}: {error.strerror}") from None
    if not content.strip().startswith(b"{"):
        raise InvalidTask(f"{path} is no statement: give a file that `adserver statement export` wrote")
    try:
        return Evidence.read(content)
    except InvalidTask as error:
        raise InvalidTask(f"{path}: {error}") from None


def _check_helpers(path: Path, evidence: "Evidence", known: set[str]) -> None:
    for one in evidence.task.helpers:
        # Signatures only show that someone's keys made it; which helpers these are is for the reader to know
        if known and one.fingerprint not in known:
            raise InvalidTask(
                f"{path}: the helper {one.name!r} has the fingerprint {one.fingerprint}: expected one of "
                "those given with --helper"
            )


def _facts(evidence: "Evidence") -> dict[str, Any]:
    """Return what evidence says, by name, as people and programs read it."""
    task, one = evidence.task, evidence.statements[-1].statement
    # Each helper accounts by its own ledger: what counts is the larger of the two
    most = {
        name: max((getattr(each.statement, name) or 0.0 for each in evidence.statements), default=0.0)
        for name in _EPSILONS
    }
    # None is an infinite epsilon: JSON has no infinity, and 0 would read as free
    is_known = one.epsilon_after is not None
    return {
        "task": task.name,
        "origin": task.origin,
        "task_id": one.task_id.hex(),
        "dataset_id": one.dataset_id.hex(),
        "kind": one.kind,
        "release_id": one.release_id.hex(),
        "answers": one.answers,
        "is_final": one.is_final,
        "mechanism": one.mechanism.value,
        "noise": one.noise.value,
        "noise_multiplier": one.noise_multiplier,
        "min_batch_size": one.min_batch_size,
        "delta": one.delta,
        **{name: value if is_known else None for name, value in most.items()},
        "epsilon": task.epsilon,
        "collusion_epsilon": task.collusion_epsilon,
        "is_within_budget": evidence.is_within_budget,
        "numerics": one.numerics.hex() if one.numerics else None,
        "charged_at": one.at,
        "signed_by": [task.helpers[each.statement.role].name for each in evidence.statements],
        "helpers": {each.name: each.fingerprint for each in task.helpers},
    }


_EPSILONS: Final = (
    "epsilon_before",
    "epsilon_after",
    "collusion_epsilon_before",
    "collusion_epsilon_after",
)


def _row(evidence: "Evidence") -> tuple[Any, ...]:
    facts = _facts(evidence)
    spent = ["infinite" if facts[name] is None else f"{facts[name]:.4g}" for name in _EPSILONS]
    noise = f"{facts['mechanism']} {facts['noise_multiplier']:.4g}"
    is_final = "yes" if facts["is_final"] else "no"
    release = facts["release_id"][:12]
    by = len(evidence.statements)
    when = format_utc(facts["charged_at"])
    return facts["kind"], release, facts["answers"], is_final, noise, *spent, when, by


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
