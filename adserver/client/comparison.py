"""Two models on labelled rows of one's own: which is better, and by how much.

    from adserver import compare

    compare("income.onnx", twin_scores, rows, labels, names=("the private model", "plain training"))

The rows are scored as by `adserver.predict`. No ad server is asked.
"""

import warnings
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adserver.client.prediction import predict
from adserver.client.tasks import read_encoder_of
from adserver.training.model_file import read_model
from adserver.training.paired_comparison import NAMES, PairedComparison, compare_scores
from adserver.training.scoring import find_encoder
from maskedlark.encoding.cells import number, said
from maskedlark.encoding.encoder import ClassLabel, Encoder
from maskedlark.encoding.fit import spell_class
from maskedlark.errors import InvalidTask
from maskedlark.terminal.plural import plural


def compare(
    model: bytes | str | Path | Any,
    other: bytes | str | Path | Any,
    rows: Any,
    labels: Any,
    *,
    encoder: Encoder | Mapping[str, Any] | str | Path | None = None,
    loss: str | None = None,
    names: tuple[str, str] = NAMES,
) -> PairedComparison:
    """Compare two models on the same labelled rows, with a 95 % interval of the difference.

    Two classes are compared by AUC, with DeLong's interval, which needs ten rows of each; more by accuracy.
    As both are scored on the same rows, the interval is narrower than those of the two figures, the more
    alike they rank. It is for other rows like these, which neither model may have been trained on: it does
    not hold the noise of training, and rows of one person count as those of several.

    Args:
        model: An exported ONNX file or its bytes, as for `predict`; or scores of any other model, one for
            each row: (rows,), the higher the more likely class 1, or (rows, classes).
        other: The same of the other model.
        rows: What the files score, as for `predict`; None where both are scores.
        labels: The class of each row: its word in the encoder, or where classes are no numbers its code. True
            and False are the classes of these names, or else codes. A row whose label is missing is left out.
        encoder: As for `predict`; of both files, where neither holds one.
        loss: As for `predict`.
        names: What the verdict calls them.

    Returns:
        Both figures (`value`, `other_value`), their `difference` with its interval from `low` to `high`, and
        the `verdict`, a sentence; a notebook shows them.

    Guarantees: both are scored on identical rows. A row that one of them cannot score, or that has no label,
    is left out for both, and a warning counts such rows.

    Raises:
        InvalidTask: a model has not one score for each label, the labels are no classes of both models, the
            files' classes differ or are in different orders, or too few rows of a class are left.
        InvalidModel: as `predict`.
    """
    columns = read_encoder_of(encoder)
    encoded = [read_model(Path(one)) if isinstance(one, str | Path) else one for one in (model, other)]
    if rows is None and any(isinstance(one, bytes) for one in encoded):
        raise InvalidTask("rows is None, but a model is a file: give the rows that it is to score")
    if isinstance(rows, Iterator):
        rows = list(rows)  # both read them
    codes = _codes(labels, _classes(encoded, columns))
    scores = [
        predict(one, rows, encoder=columns, loss=loss)
        if isinstance(one, bytes)
        else np.asarray(one, np.float64)
        for one in encoded
    ]
    is_whole = ~np.isnan(codes)
    for found, name in zip(scores, names, strict=True):
        if found.ndim not in (1, 2) or len(found) != len(codes):
            raise InvalidTask(
                f"the scores of {name} have the shape {found.shape}: expected one row for each of "
                f"{plural(len(codes), 'label')}"
            )
        is_whole &= ~np.isnan(found.reshape(len(found), -1)).any(axis=1)
    if left := int((~is_whole).sum()):
        warnings.warn(
            f"{plural(left, 'row is', 'rows are')} left out for both models: without a label, or a score of "
            "one of them",
            stacklevel=2,
        )
    first, second = (found[is_whole] for found in scores)
    return compare_scores(first, second, codes[is_whole].astype(np.int64), names=names)


def _classes(models: list[Any], encoder: Encoder | None) -> tuple[str, ...]:
    """Return the words of the classes by code; none where no file has an encoder.

    Raises:
        InvalidTask: one file's class 1 is another's class 0.
    """
    files = [one for one in models if isinstance(one, bytes)]
    encoders = [find_encoder(one, encoder) for one in files] if files else [encoder]
    orders = dict.fromkeys(
        one.label.classes for one in encoders if one is not None and isinstance(one.label, ClassLabel)
    )
    if len(orders) > 1:
        both = " and ".join(", ".join(order) for order in orders)
        raise InvalidTask(
            f"the two files have other classes or another order of them, {both}: give the scores of one as "
            "an array, in the order of the other"
        )
    return next(iter(orders), ())


def _codes(labels: Any, classes: tuple[str, ...]) -> NDArray[np.float64]:
    """Return the code of each label, NaN for none.

    Raises:
        InvalidTask: labels are neither codes nor the words of the classes.
    """
    given = np.asarray(labels)
    if given.ndim != 1:
        raise InvalidTask(f"labels have the shape {given.shape}: expected (rows,)")
    codes = {word: float(code) for code, word in enumerate(classes)}
    return np.array([_code(one, codes) for one in given.tolist()], np.float64)


def _code(label: Any, codes: Mapping[str, float]) -> float:
    if isinstance(label, str) and label in codes:
        return codes[label]  # also of a class that is called None
    # Before its code: classes may be in any order
    if isinstance(label, bool | np.bool_) and (named := _class_of_bool(label, codes)) is not None:
        return named
    value = float(label) if isinstance(label, Real) else None
    # Where classes are numbers, a number is the name of one
    word = said(str(label) if value is None else spell_class(repr(value)))
    if word is None:
        return np.nan
    if (code := codes.get(word, codes.get(spell_class(word)))) is not None:
        return code
    known = ", ".join(map(repr, codes)) or "of which none is given"
    if any(number(one) is not None for one in codes):
        raise InvalidTask(
            f"the label {label!r} is none of the encoder's classes ({known}): give these, not codes"
        )
    if value is not None and value.is_integer():
        return value
    raise InvalidTask(
        f"the label {label!r} is neither a class's code nor one of the encoder's words ({known}): give "
        "codes, True and False, or these words"
    )


def _class_of_bool(label: bool | np.bool_, codes: Mapping[str, float]) -> float | None:
    """Return the code of the class that is called True or False, in any case; None if none or several are."""
    named = [code for word, code in codes.items() if word.lower() == str(label).lower()]
    return named[0] if len(named) == 1 else None
