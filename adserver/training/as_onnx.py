"""Models as people have them, as ONNX files.

A path, bytes, a torch module, or a fitted scikit-learn estimator.

torch and scikit-learn are not imported here: a caller that passes one of their models has imported them.
"""

import io
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adserver.training.inference import predict
from adserver.training.model_file import read_model
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.onnx_file import parse, replace_parameters

_ACTIVATIONS: Final = {"relu": "relu", "tanh": "tanh", "logistic": "sigmoid", "identity": None}
# torch takes a dimension of 1 in an example for one that is always 1.
_EXAMPLES: Final = 2


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
    raise InvalidModel(
        ModelReason.NOT_ONNX,
        f"the model is of type {type(model).__name__}: expected an ONNX file, a torch module, or a fitted "
        "linear model or MLP of scikit-learn",
    )


def _export(module: Any, num_features: int) -> bytes:
    """Export a torch module for any number of records, by torch's current exporter if possible."""
    import torch

    example = (torch.zeros(_EXAMPLES, num_features),)
    was_training = module.training
    # In training mode dropout would become a part of the graph; the caller's mode is restored.
    module.eval()
    try:
        _check_runs(module, example[0])
        with warnings.catch_warnings(), _only_errors_of("torch.onnx"):
            warnings.simplefilter("ignore")  # the exporters warn about themselves
            try:
                import onnxscript  # noqa: F401 # what the present exporter needs
            except ImportError:
                return _legacy(module, example)
            with _distinct_values(module) as changed:
                made = _present(module, example) if changed else b""
            whole = _with_values(made, changed) if changed else None
            if whole is not None and _gives_the_same(whole, module, num_features):
                return whole
            return _present(module, example)
    except InvalidModel:
        raise
    except Exception as error:  # torch's exporters raise many kinds
        raise InvalidModel(ModelReason.NOT_ONNX, f"torch cannot export the module: {error}") from error
    finally:
        module.train(was_training)


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


@contextmanager
def _distinct_values(module: Any) -> Iterator[dict[float, list[NDArray[np.float32]]]]:
    """Let parameters that begin at one number have others for a while; yield these by that number.

    The exporter drops a bias of zeros, and keeps one of several parameters of equal values: what it leaves
    out would not be trained.
    """
    import torch

    random, before = torch.Generator().manual_seed(0), []
    changed: dict[float, list[NDArray[np.float32]]] = {}
    for one in module.parameters():
        if one.dtype == torch.float32 and one.numel() and bool((one == one.flatten()[0]).all()):
            before.append((one, one.detach().clone()))
    try:
        with torch.no_grad():
            for one, values in before:
                one.copy_(torch.rand(one.shape, generator=random) + 0.5)
                held = one.detach().cpu().numpy().ravel().copy()
                changed.setdefault(float(values.flatten()[0]), []).append(np.sort(held))
        yield changed
    finally:
        with torch.no_grad():
            for one, values in before:
                one.copy_(values)


def _with_values(encoded: bytes, changed: dict[float, list[NDArray[np.float32]]]) -> bytes | None:
    """Return the file with each changed parameter at its own number; None if one is not found as it was.

    A parameter may have moved its entries, such as a weight that is transposed.
    """
    import onnx
    from onnx import numpy_helper

    proto = onnx.ModelProto.FromString(encoded)
    given = [(number, values) for number, all_of in changed.items() for values in all_of]
    found = set[int]()
    for tensor in proto.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        held = numpy_helper.to_array(tensor)
        ordered = np.sort(held.ravel())
        for at, (number, values) in enumerate(given):
            # A tied weight may be there twice, once transposed
            if np.array_equal(ordered, values):
                tensor.CopyFrom(numpy_helper.from_array(np.full(held.shape, number, np.float32), tensor.name))
                found.add(at)
    return bytes(proto.SerializeToString()) if len(found) == len(given) else None


def _gives_the_same(encoded: bytes, module: Any, num_features: int) -> bool:
    """Return whether a file computes what its module does: a constant may hold the other values."""
    import torch

    shape = (_EXAMPLES, num_features)
    for features in (
        np.random.default_rng(0).integers(0, 256, shape, np.uint8),
        np.ones(shape, np.uint8),
        np.zeros(shape, np.uint8),
    ):
        # A table may be too short for the first ones; all zeros have run before
        with suppress(Exception), torch.no_grad():
            given = module(torch.from_numpy(features / np.float32(256)))
            break
    else:
        return False
    several = given if isinstance(given, tuple | list) else [given]
    expected = np.concatenate([one.cpu().numpy().reshape(_EXAMPLES, -1) for one in several], axis=1)
    found = predict(encoded, features)
    return found.shape == expected.shape and np.allclose(found, expected, 1e-3, 1e-5, equal_nan=True)


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
