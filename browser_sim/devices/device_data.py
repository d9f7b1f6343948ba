"""What devices hold: MNIST in shards, a table keyed by a user's column, or plays by speaker."""

import gzip
import json
from dataclasses import field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from browser_sim.draws import Draws
from browser_sim.source import InvalidSource, RowCounts
from browser_sim.sources.mnist import default_folder, load_mnist
from browser_sim.sources.table import TableSettings, load_table
from maskedlark.errors import InvalidTask
from maskedlark.federated.local_training import Examples
from maskedlark.federated.populations import Population
from maskedlark.frozen import frozen

CONTEXT: Final = 8
"""Characters that the next one is guessed from, in text."""
CHARACTERS: Final = " abcdefghijklmnopqrstuvwxyz'-,.!?;:\n"
"""The characters of text, in lower case; any other counts as the last one."""


@frozen
class Holdings:
    """All examples, and which device holds which.

    Attributes:
        features: u8 (n, d).
        labels: int64 (n,).
        population: One device a member.
        test: Examples that no device holds, or None.
        rows: What became of the rows of a table; None for other sources.
    """

    features: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    population: Population
    test: Examples | None = None
    rows: RowCounts | None = None

    def examples(self, device: int) -> Examples:
        """Return one device's examples."""
        return self.population.examples(self.features, self.labels, device)


def mnist_in_shards(
    folder: Path | None, *, devices: int, shards_each: int, shard_size: int, draws: Draws
) -> Holdings:
    """Sort MNIST by digit and deal it in shards, as Geyer et al. (2017) do.

    No device holds examples of the published test set.

    Raises:
        InvalidSource: the files are missing or damaged.
        InvalidTask: they do not give one device its shards.
    """
    source = load_mnist(folder or default_folder())
    labels = source.records.labels.astype(np.int64)
    population = Population.in_shards(
        labels,
        devices=devices,
        shards_each=shards_each,
        shard_size=shard_size,
        randomness=draws.stream("mnist shards"),
    )
    test = source.own_test
    return Holdings(
        features=source.records.features,
        labels=labels,
        population=population,
        test=None if test is None else Examples(features=test.features, labels=test.labels.astype(np.int64)),
    )


def table_by_user(settings: TableSettings, user: str, *, least: int) -> Holdings:
    """Read a table whose rows belong to people, by the column `user`, which is not a feature.

    The rest as `browser-sim run` reads it. Rows without a label or a person are left out, and the holdings
    say how many.

    Raises:
        InvalidSource: the file or the column is missing, or no row has a label and a person.
        InvalidTask: no person has `least` rows.
    """
    source = load_table(replace(settings, person=user))
    records = source.records
    if records.people is None:
        raise AssertionError("a table of people says whose each row is")
    return Holdings(
        features=records.features,
        labels=records.labels.astype(np.int64),
        population=Population.by_user(records.people.tolist(), least=least),
        rows=source.rows,
    )


def text_by_speaker(path: Path, *, least: int) -> Holdings:
    """Read plays by speaker: each character is predicted from the `CONTEXT` before it.

    Raises:
        InvalidSource: the file is not gzip-packed JSON of lists of lines by speaker.
        InvalidTask: no speaker has `least` characters.
    """
    try:
        spoken = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise InvalidSource(f"cannot read {path.name}: {type(error).__name__}") from None
    if not isinstance(spoken, dict) or not all(_is_lines(lines) for lines in spoken.values()):
        raise InvalidSource(f"{path.name} is not valid: expected JSON with lines by speaker")
    features, labels, users = [], [], []
    for speaker, lines in sorted(spoken.items()):
        # Spaces before the first line, so that its first characters have a context too.
        codes = _codes(" " * CONTEXT + "\n".join(lines))
        if len(codes) - CONTEXT < least:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(codes, CONTEXT + 1)
        features.append(windows[:, :CONTEXT])
        labels.append(windows[:, CONTEXT].astype(np.int64))
        users += [speaker] * len(windows)
    if not users:
        raise InvalidTask(f"no speaker has {least} characters or more: give a smaller --least")
    population = Population.by_user(users, least=least)
    return Holdings(features=np.concatenate(features), labels=np.concatenate(labels), population=population)


def _is_lines(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(line, str) for line in found)


def _codes(text: str) -> NDArray[np.uint8]:
    """Convert the characters of a text to their positions in `CHARACTERS`."""
    places = {character: place for place, character in enumerate(CHARACTERS)}
    last = len(CHARACTERS) - 1
    return np.array([places.get(character, last) for character in text.lower()], np.uint8)
