"""The activations that a network may be made of, without ONNX: command lines import them."""

from typing import Final

HIDDEN_ACTIVATIONS: Final = {
    "relu": "Relu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "elu": "Elu",
    "gelu": "Gelu",
}


FINAL_ACTIVATIONS: Final = {"linear": None, "sigmoid": "Sigmoid", "log_softmax": "LogSoftmax"}
