"""Models as people have them, as ONNX files.

A path, bytes, a torch module, or a fitted scikit-learn estimator.

torch and scikit-learn are not imported here: a caller that passes one of their models has imported them.
"""

import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adserver.training.model_file import read_model
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.onnx_file import parse, replace_parameters

_ACTIVATIONS: Final = {"relu": "relu", "tanh": "tanh", "logistic": "sigmoid", "identity": None}
# torch takes a dimension of 1 in an example for one that is always 1.
_EXAMPLES: Final = 2
_MOST_NAMED: Final = 3
_DROPOUT: Final = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout")
# What torch's exporter writes around the cause: colours, advice for its own authors, and a heading.
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_FRAME: Final = re.compile(r'File "[^"]+", line (\d+), in (\w+)\n(.+)')
_SUMMARY: Final = "## Exception summary"
_MOST_SAID: Final = 400


def as_onnx(model: Any, num_features: int) -> bytes:
    """Convert a model to an ONNX file. Called by `Client`.

    Args:
        model: A path, the file's bytes, a torch module of float32 (records, num_features), or a scikit-learn
            estimator with `coef_` (linear and logistic regression) or `coefs_` (MLPClassifier, MLPRegressor).
            Estimators give their linear outputs: logits, or what a regression predicts.
        num_features: How wide its input is.

    Raises:
        InvalidModel: it is not one of these, or has no such form.
    """
    if isinstance(model, bytes):
        return model
    if isinstance(model, str | Path):
        return read_model(Path(model))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return _export(model, num_features)
    if hasattr(model, "coefs_"):
        return _perceptron(model)
    if hasattr(model, "coef_"):
        # A regression of one output has a vector of coefficients, and no matrix.
        weight = np.atleast_2d(model.coef_)
        # One layer has no activation behind it, so any name will do.
        return _dense([weight.T], [np.atleast_1d(model.intercept_)], "relu")
    unfitted = "; this one is not fitted: call its fit" if _is_unfitted(model) else ""
    raise InvalidModel(
        ModelReason.NOT_ONNX,
        f"the model is of type {type(model).__name__}: expected an ONNX file, a torch module, or a fitted "
        f"linear model or MLP of scikit-learn{unfitted}",
    )


def _is_unfitted(model: Any) -> bool:
    """Return whether a model is an estimator without what a fit leaves: attributes that end in `_`."""
    return hasattr(model, "fit") and not any(
        name.endswith("_") and not name.startswith("__") for name in getattr(model, "__dict__", {})
    )


def _export(module: Any, num_features: int) -> bytes:
    """Export a torch module for any number of records, by torch's current exporter if possible."""
    import torch

    example = (torch.zeros(_EXAMPLES, num_features),)
    was_training = module.training
    # In training mode dropout would become a part of the graph; the caller's mode is restored.
    module.eval()
    try:
        _check_weights(module)
        _check_layers(module)
        _check_runs(module, example[0])
        with warnings.catch_warnings(), _only_errors_of("torch"), _without_prints():
            warnings.simplefilter("ignore")  # the exporters warn about themselves
            try:
                import onnxscript  # noqa: F401 # what the present exporter needs
            except ImportError:
                return _legacy(module, example)
            # What cannot be copied or changed is exported as it is
            with suppress(Exception):
                if (whole := _whole(module, example)) is not None:
                    return whole
            return _present(module, example)
    except InvalidModel:
        raise
    except Exception as error:  # torch's exporters raise many kinds
        raise InvalidModel(ModelReason.NOT_ONNX, _explain(str(error))) from error
    finally:
        module.train(was_training)


def warn_of_modes(model: Any) -> Iterator[str]:
    """Yield a line for what a torch module does only while torch trains it, and a job never does.

    That is dropout, and reading the mean and variance of records into layers of batch norm.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return
    dropout = tuple(getattr(torch.nn, kind) for kind in _DROPOUT)
    layers = dict(model.named_modules())
    if names := [name for name, layer in layers.items() if isinstance(layer, dropout) and layer.p > 0]:
        yield f"dropout ({_name_few(names)}) is not applied: the module trains as in eval()"
    norm = torch.nn.modules.batchnorm._NormBase
    norms = [(name, layer) for name, layer in layers.items() if isinstance(layer, norm)]
    if names := [
        name for name, layer in norms if layer.track_running_stats and not layer.num_batches_tracked
    ]:
        yield (
            f"batch norm ({_name_few(names)}) has seen no record, so it takes 0 for the mean and 1 for the "
            "variance of its inputs, and keeps them: run the module in train() on public records first, or "
            "use LayerNorm"
        )


def _name_few(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_MOST_NAMED])) + (", ..." if len(names) > _MOST_NAMED else "")


def _check_weights(module: Any) -> None:
    """Refuse weights of another precision than the features have.

    Raises:
        InvalidModel: NOT_ONNX.
    """
    import torch

    for name, one in module.named_parameters():
        if one.is_floating_point() and one.dtype is not torch.float32:
            kind = str(one.dtype).removeprefix("torch.")
            raise InvalidModel(
                ModelReason.NOT_ONNX,
                f"the module's parameter {name!r} is {kind}, but features and weights are float32: call "
                "the module's .float() first",
            )


def _check_layers(module: Any) -> None:
    """Refuse layers that torch exports as loops, by their names.

    Raises:
        InvalidModel: SUBGRAPH.
    """
    import torch

    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.EmbeddingBag):
            raise InvalidModel(
                ModelReason.SUBGRAPH,
                f"the layer {name!r} is an nn.EmbeddingBag, which torch exports as a loop: use nn.Embedding "
                "and a sum or mean of its rows, such as table(codes).mean(1)",
            )


def _explain(raised: str) -> str:
    """Return what people need of an exporter's error: the line of their code, or its summary, on one line."""
    said = _ESCAPES.sub("", raised)
    # The last is the innermost of the person's own frames
    frames = _FRAME.findall(said)
    if "data-dependent" in said and frames:
        line, function, code = frames[-1]
        return (
            f"torch cannot export the module: line {line}, in {function}, {code.strip()!r}, depends on "
            "values of the records: write it without if, as products and sums, such as with torch.relu"
        )
    summary = said.partition(_SUMMARY)[2] or said
    return f"torch cannot export the module: {' '.join(summary.split())[:_MOST_SAID]}"


def _present(module: Any, example: tuple[Any, ...]) -> bytes:
    import torch

    program = torch.onnx.export(
        module,
        example,
        dynamo=True,
        external_data=False,
        verbose=False,
        dynamic_shapes=({0: torch.export.Dim("records")},),
    )
    if program is None:
        raise InvalidModel(
            ModelReason.NOT_ONNX,
            "torch's exporter returned no model: export the module to ONNX yourself and give the file",
        )
    return bytes(program.model_proto.SerializeToString())


def _whole(module: Any, example: tuple[Any, ...]) -> bytes | None:
    """Export a module with all parameters that begin at one number; None if there are none, or it cannot be.

    The exporter drops a bias of zeros, and keeps one of several parameters of equal values: what it leaves
    out would not be trained. So a copy has other values there, and the file gets their own. Two exports with
    different values must become the same file: else a constant that was made of them holds the others.
    """
    names = [
        name
        for name, one in module.named_parameters()
        if one.dtype.is_floating_point and one.numel() and bool((one == one.flatten()[0]).all())
    ]
    while names:
        first, found = _export_with_others(module, example, names, 0)
        if first == _export_with_others(module, example, names, 1)[0]:
            return first
        # What is not in the file by itself may be in a constant
        if len(found) == len(names):
            return None
        names = found
    return None


def _export_with_others(
    module: Any, example: tuple[Any, ...], names: Sequence[str], seed: int
) -> tuple[bytes, list[str]]:
    """Export a copy whose named parameters have other values; return it with their own, and those found.

    A parameter may have moved its entries, as a weight that is transposed, and a tied one is there twice.
    """
    import onnx
    import torch
    from onnx import numpy_helper

    copied, random = deepcopy(module), torch.Generator().manual_seed(seed)
    parameters = dict(copied.named_parameters())
    given: dict[str, tuple[float, NDArray[np.generic]]] = {}
    for name in names:
        one = parameters[name]
        number = float(one.detach().flatten()[0])
        one.data = (torch.rand(one.shape, generator=random) + 0.5).to(one)
        given[name] = number, np.sort(one.detach().cpu().numpy().ravel())
    proto, found = onnx.ModelProto.FromString(_present(copied, example)), set[str]()
    for tensor in proto.graph.initializer:
        held = numpy_helper.to_array(tensor)
        ordered = np.sort(held.ravel())
        for name, (number, values) in given.items():
            if np.array_equal(ordered, values):
                own = np.full(held.shape, number, held.dtype)
                tensor.CopyFrom(numpy_helper.from_array(own, tensor.name))
                found.add(name)
    return bytes(proto.SerializeToString(deterministic=True)), [name for name in names if name in found]


def _check_runs(module: Any, example: Any) -> None:
    """Run a module once: what does not run, exporters explain in pages about themselves.

    Raises:
        InvalidModel: NOT_ONNX; the message has what the module raised.
    """
    import torch

    try:
        with torch.no_grad():
            module(example)
    except Exception as error:  # a person's own code
        raise InvalidModel(
            ModelReason.NOT_ONNX,
            f"the module does not run on one float32 tensor of (records, {example.shape[1]}), the features "
            f"of the reports: {error}",
        ) from error


@contextmanager
def _only_errors_of(name: str) -> Iterator[None]:
    """Keep a logger's warnings from people: the exporter names libraries that nothing here needs."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _without_prints() -> Iterator[None]:
    """Keep from people the graphs that torch prints where it fails: the error says what is wrong."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def _legacy(module: Any, example: tuple[Any, ...]) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.onnx.export(
        module,
        example,
        buffer,  # type: ignore[arg-type]  # a file object will do, though the type does not say so
        dynamo=False,
        verbose=False,
        input_names=["features"],
        dynamic_axes={"features": {0: "records"}},
    )
    return buffer.getvalue()


def _perceptron(model: Any) -> bytes:
    if model.activation not in _ACTIVATIONS:
        raise InvalidModel(
            ModelReason.UNKNOWN_OPERATOR,
            f"the MLP's activation {model.activation!r} is not supported: use another activation",
        )
    activation = _ACTIVATIONS[model.activation]
    if activation is None and len(model.coefs_) > 1:
        raise InvalidModel(
            ModelReason.UNKNOWN_OPERATOR,
            "the MLP's activation is 'identity', which makes it a linear model: use another activation",
        )
    return _dense(model.coefs_, model.intercepts_, activation or "relu")


def _dense(weights: Sequence[NDArray[Any]], biases: Sequence[NDArray[Any]], activation: str) -> bytes:
    """Build a dense network of these weights, (inputs, outputs) each, and biases."""
    widths = [weights[0].shape[0], *(weight.shape[1] for weight in weights)]
    # Any seed: the weights that it draws are replaced below.
    encoded = dense_network(widths, activation, seed=0)
    # An ONNX file holds weights as (outputs, inputs), scikit-learn the other way round.
    values = [
        value.astype(np.float32)
        for weight, bias in zip(weights, biases, strict=True)
        for value in (np.ascontiguousarray(weight.T), np.asarray(bias))
    ]
    return replace_parameters(encoded, parse(encoded, num_features=widths[0]), values)
