"""What a helper is willing to read, hold and compute for one model.

The bounds that a hostile file meets before any work is done.
"""

from maskedlark.frozen import frozen


@frozen
class Limits:
    """Upper bounds on one ONNX file; a file past any of them is refused as TOO_LARGE.

    The defaults admit models of about eight million parameters, and keep a refusal below a second and 256
    MiB.

    Attributes:
        max_bytes: Length of the file.
        max_fields: Protobuf fields in the file. Each costs the decoder up to 150 bytes of memory, however
            short it is on the wire.
        max_structure_bytes: Bytes of the file that are not the contents of a tensor.
        max_nodes: Operators in the graph.
        max_parameters: Trainable numbers.
        max_rank: Axes of any value.
        max_elements: Entries of any one value, for one record.
        max_total_elements: Entries of all values together, for one record.
        max_computed_elements: Entries of all constants together that the graph computes from others (shapes,
            start states).
        max_multiplications: Multiplications of all matrix products, convolutions and recurrences together,
            for one record.
    """

    max_bytes: int = 40 << 20
    max_fields: int = 120_000
    max_structure_bytes: int = 8 << 20
    max_nodes: int = 2_048
    max_parameters: int = 1 << 23
    max_rank: int = 8
    max_elements: int = 1 << 23
    max_total_elements: int = 1 << 25
    max_computed_elements: int = 1 << 20
    max_multiplications: int = 1 << 32
