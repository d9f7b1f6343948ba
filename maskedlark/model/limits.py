"""What a helper is willing to read, hold and compute for one model.

The bounds that a hostile file meets before any work is done.

>>> Limits.admitting(1 << 23).max_bytes >> 20
40
"""

from typing import Final, Self

from maskedlark.frozen import frozen

MOST_PARAMETERS: Final = 1 << 26
"""Of any model: a round's answer of 8 bytes each must stay below what a database holds in one value."""
HELPER_PARAMETERS: Final = 1 << 23
"""What a helper reads unless its operator admits more: each costs it about 80 bytes of memory in a round."""
_STRUCTURE_BYTES: Final = 8 << 20
_WEIGHT_BYTES: Final = 4


@frozen
class Limits:
    """Upper bounds on one ONNX file; a file past any of them is refused as TOO_LARGE.

    The defaults admit the largest models that there are. `Limits.admitting(HELPER_PARAMETERS)` keeps a
    refusal below a second and 256 MiB.

    Attributes:
        max_bytes: Length of the file.
        max_fields: Protobuf fields in the file. Each costs the decoder up to 150 bytes of memory, however
            short it is on the wire.
        max_structure_bytes: Bytes of the file that are not the contents of a tensor.
        max_nodes: Operators in the graph.
        max_parameters: Trainable numbers.
        max_rank: Axes of any value.
        max_elements: Entries of any one value, for one record; and of a tensor whose entries the file lists
            one by one, as decoders are slow to read them.
        max_total_elements: Entries of all values together, for one record.
        max_computed_elements: Entries of all constants together that the graph computes from others (shapes,
            start states).
        max_multiplications: Multiplications of all matrix products, convolutions and recurrences together,
            for one record.
    """

    max_bytes: int = _WEIGHT_BYTES * MOST_PARAMETERS + _STRUCTURE_BYTES
    max_fields: int = 120_000
    max_structure_bytes: int = _STRUCTURE_BYTES
    max_nodes: int = 2_048
    max_parameters: int = MOST_PARAMETERS
    max_rank: int = 8
    max_elements: int = 1 << 23
    max_total_elements: int = 1 << 25
    max_computed_elements: int = 1 << 20
    max_multiplications: int = 1 << 32

    @classmethod
    def admitting(cls, parameters: int) -> Self:
        """Return the bounds for models of up to so many parameters."""
        return cls(max_bytes=_WEIGHT_BYTES * parameters + _STRUCTURE_BYTES, max_parameters=parameters)
