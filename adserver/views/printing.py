"""What commands print: tables and progress for people, JSON for programs."""

import csv
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from maskedlark.errors import InvalidTask
from maskedlark.escape import DELETE, SHOWN_DELETE
from maskedlark.runtime.durable_file import write_durably
from maskedlark.terminal.escape import plain
from maskedlark.terminal.interactive import may_be_seen
from maskedlark.terminal.whole_table import print_whole

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

# What writes a file, and the extra that installs it
_PARTS: Final = {".png": ("matplotlib", "pictures"), ".parquet": ("pyarrow", "parquet")}

_T = TypeVar("_T")


def print_json(value: Any) -> None:
    """Print one JSON document; messages in it as the admin API answers them."""
    # JSON escapes all control characters but DEL, on which terminals act
    text = json.dumps(value, indent=2, default=lambda message: message.model_dump(mode="json"))
    sys.stdout.write(text.replace(DELETE, SHOWN_DELETE) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; an empty one still shows its head."""
    # Loaded here, so that commands that print no table need not load rich
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(plain(column), overflow="fold")  # an id that is cut off is of no use
    for row in rows:
        table.add_row(*map(plain, row))
    print_whole(table)


def write_as(forms: Mapping[str, Callable[[_T], bytes]], result: _T, path: Path, what: str) -> None:
    """Write a result in the form that the file's name ends with.

    Raises:
        InvalidTask: another ending.
    """
    _check_ending(path, forms, what)
    write_durably(path, forms[path.suffix.lower()](result))


def check_parts(paths: Iterable[Path], endings: Collection[str] = (), what: str = "") -> None:
    """Check that files can be written, before anything is charged for them.

    Args:
        paths: The files.
        endings: Those that `write_as` will know for them, and `what` it will say; by default it is not asked.
        what: See there.

    Raises:
        InvalidTask: a file has another ending, or its folder takes no files (one that is missing will be
            made); or what writes pictures or Parquet files is not installed, and the message says what to
            install.
    """
    for path in paths:
        if endings:
            _check_ending(path, endings, what)
        # `exists` raises below a folder that may not be entered
        folder = next(one for one in path.absolute().parents if os.access(one, os.F_OK))
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)) or path.is_dir():
            raise InvalidTask(f"cannot write {path}: give a file in a folder where you may write")
        check_installed(path)


def check_installed(path: Path) -> None:
    """Check that what writes files of this ending is installed.

    Raises:
        InvalidTask: it is not, and the message says what to install.
    """
    part, extra = _PARTS.get(path.suffix.lower(), ("", ""))
    if part and find_spec(part) is None:
        raise InvalidTask(f"{path.name} needs {part}: pip install 'masked-lark[{extra}]'")


def _check_ending(path: Path, endings: Collection[str], what: str) -> None:
    if path.suffix.lower() not in endings:
        raise InvalidTask(f"{what} written to a file that ends in {', '.join(endings)}, not {path.name!r}")


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Encode a CSV file; floats in Python's shortest exact form."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(rows)
    return text.getvalue().encode()


def short(identifier: bytes) -> str:
    """Return the start of an id: enough to type where an id is expected."""
    return identifier.hex()[:12]


@contextmanager
def sealing_bars(*, is_shown: bool = True) -> Iterator[Callable[[int, int, int], None]]:
    """Show one bar for each helper; call the result with the role, how many more are done, of how many."""
    # Then rich is not loaded at all
    if not is_shown or not may_be_seen():
        yield lambda _role, _count, _total: None
        return
    with progress_bars(is_shown=is_shown) as bars:
        # One each, since helpers prepare at the same time and at speeds of their own
        rows = [bars.add_task(f"helper {role}", total=None) for role in (0, 1)]

        def show(role: int, count: int, total: int) -> None:
            bars.update(rows[role], total=total, advance=count)

        yield show


@contextmanager
def progress_bars(*, is_shown: bool = True) -> Iterator["Progress"]:
    """Show progress bars with the remaining time, on a terminal or in a notebook, until the context ends.

    On standard error: standard output is for programs.
    """
    from rich.console import Console

    console = Console(stderr=True)
    is_seen = is_shown and (console.is_terminal or console.is_jupyter)
    with progress_on(console, is_shown=is_seen, transient=True) as progress:
        yield progress


def progress_on(
    console: "Console", *further: "ProgressColumn", is_shown: bool, transient: bool
) -> "Progress":
    """Create bars with a description, a count, the times, and the `further` columns."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        *further,
    )
    return Progress(
        *columns, console=console, transient=transient, disable=not is_shown, refresh_per_second=2
    )
