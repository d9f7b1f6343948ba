"""Text keyed by speaker as sequences of word numbers, for the language model.

A file is gzipped JSON: {"speaker": ["line", ...], ...}. A speaker is a user. The most frequent words are
chosen from the corpus itself, as the paper chooses them from another one: that choice is not private, and a
real system needs a private one.
"""

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import InvalidTask
from maskedlark.federated.local_training import Examples, shuffle
from maskedlark.federated.populations import Population
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness

BEGIN: Final = 1
END: Final = 2
_WORD: Final = re.compile(r"[a-z']+")


@frozen(eq=False)
class Corpus:
    """Sequences of words by speaker.

    Attributes:
        population: Which sequences each training speaker has.
        words: (sequences, tokens): all training sequences.
        targets: (sequences, tokens): the words that follow.
        held_out: Sequences of speakers that do not train.
        majority: The best constant guess's recall on the held-out sequences.
    """

    population: Population
    words: NDArray[np.int64]
    targets: NDArray[np.int64]
    held_out: Examples
    majority: float


def read_corpus(
    path: Path, *, vocabulary: int, tokens: int, most: int, least: int, held_out: int, randomness: Randomness
) -> Corpus:
    """Read a corpus.

    Args:
        path: The gzipped JSON file.
        vocabulary: How many words, with the unknown one and the two ends of a line.
        tokens: A sequence's length.
        most: Sequences of a speaker that are used, at most.
        least: Speakers with fewer are left out.
        held_out: How many speakers do not train.
        randomness: Chooses those.

    Raises:
        InvalidTask: not such a file, or too few speakers.
    """
    try:
        spoken = json.loads(gzip.decompress(path.read_bytes()))
        lines = {speaker: [_WORD.findall(line.lower()) for line in said] for speaker, said in spoken.items()}
    except (OSError, EOFError, ValueError, AttributeError, TypeError):
        raise InvalidTask(f"{path.name} is not gzipped JSON of lines by speaker") from None
    counts = Counter(word for said in lines.values() for line in said for word in line)
    number = {word: index + 3 for index, (word, _) in enumerate(counts.most_common(vocabulary - 3))}
    speakers = []
    for speaker in sorted(lines):
        stream = [
            code for line in lines[speaker] for code in (BEGIN, *(number.get(word, 0) for word in line), END)
        ]
        whole = min((len(stream) - 1) // tokens, most)
        if whole >= least:
            speakers.append(np.array(stream[: whole * tokens + 1], np.int64))
    if len(speakers) <= held_out:
        raise InvalidTask(f"only {len(speakers)} speakers have {least} sequences of {tokens} words")
    order = shuffle(len(speakers), randomness)
    aside, training = order[:held_out], np.sort(order[held_out:])
    words, targets = _sequences([speakers[one] for one in training], tokens)
    lengths = [len(speakers[one]) // tokens for one in training]
    members = np.split(np.arange(len(words)), np.cumsum(lengths)[:-1])
    held_words, held_targets = _sequences([speakers[one] for one in aside], tokens)
    shares = np.bincount(held_targets.ravel(), minlength=vocabulary)[1:] / held_targets.size
    return Corpus(
        population=Population(members=tuple(members)),
        words=words,
        targets=targets,
        held_out=Examples(features=held_words, labels=held_targets),
        majority=float(shares.max()),
    )


def _sequences(streams: list[NDArray[np.int64]], tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Words and the words that follow, in sequences."""
    words = np.concatenate([stream[:-1].reshape(-1, tokens) for stream in streams])
    targets = np.concatenate([stream[1:].reshape(-1, tokens) for stream in streams])
    return words, targets
