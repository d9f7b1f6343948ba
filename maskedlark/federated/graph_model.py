"""A model that devices train as an ONNX graph, as public instructions name it: the file without its weights.

    model = GraphModel.of_file(file, widths=(8, 37), layer_sizes=(37, 148))            # ad server
    model.file()                                          # device: the ONNX file, all weights zero

The weights come with each round. Training a graph takes torch: `maskedlark.autodiff.torch_models`. This
module works without torch and onnx, so that a device that lacks them can report it.
"""

import zlib
from base64 import b64decode, b64encode
from binascii import Error
from typing import Final, Self

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.frozen import frozen

MAX_GRAPH_CHARACTERS: Final = 7_000
"""Of the packed file: the most that a job's instructions have room for, after a strategy."""
# The most that a file may have in addition to its weights
_STRUCTURE_BYTES: Final = 1 << 20


@frozen
class GraphModel:
    """An ONNX graph of a classifier.

    Attributes:
        widths: Features and classes.
        layer_sizes: The sizes of the graph's parameters, in the file's order.
        packed: The file with zeros for weights, compressed, in base64.
    """

    widths: tuple[int, int]
    layer_sizes: tuple[int, ...]
    packed: str

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(self.layer_sizes)

    @classmethod
    def of_file(cls, file: bytes, *, widths: tuple[int, int], layer_sizes: tuple[int, ...]) -> Self:
        """Build the model of a file whose weights are zeros. Called by the ad server.

        Raises:
            InvalidModel(TOO_LARGE): the graph, without its weights, does not fit a job's instructions.
        """
        # Weights of zeros pack to almost nothing; base64 takes a third less room than hex would.
        packed = b64encode(zlib.compress(file, 9)).decode("ascii")
        if len(packed) > MAX_GRAPH_CHARACTERS:
            raise InvalidModel(
                ModelReason.TOO_LARGE,
                f"the graph without its weights packs to {len(packed)} characters, and devices are sent at"
                f" most {MAX_GRAPH_CHARACTERS}: use fewer nodes or constants",
            )
        return cls(widths=widths, layer_sizes=layer_sizes, packed=packed)

    def file(self) -> bytes:
        """Return the ONNX file, all weights zero. Called by a device; the bytes are not checked yet.

        Raises:
            InvalidModel(NOT_ONNX): it is not packed as `of_file` packs.
            InvalidModel(TOO_LARGE): it unpacks to more than its weights and 1 MiB.
        """
        most = 4 * self.size + _STRUCTURE_BYTES
        # Bounded as it unpacks: 7,000 characters can hold 5.4 megabytes of zeros.
        unpacking = zlib.decompressobj()
        try:
            file = unpacking.decompress(b64decode(self.packed, validate=True), most)
        except (zlib.error, Error):
            raise InvalidModel(ModelReason.NOT_ONNX, "the graph is not packed as a job packs it") from None
        if unpacking.unconsumed_tail:
            raise InvalidModel(ModelReason.TOO_LARGE, f"the graph unpacks to more than {most} bytes")
        if not unpacking.eof:
            raise InvalidModel(ModelReason.NOT_ONNX, "the graph is cut off")
        return file
