"""A picture that a notebook shows."""

from dataclasses import field

from maskedlark.frozen import frozen


@frozen
class Picture:
    """A drawn picture: a notebook shows it, and `png` can be written to a file.

    Attributes:
        png: A PNG file's bytes.
    """

    png: bytes = field(repr=False)

    def _repr_png_(self) -> bytes:
        """Return the picture, for a notebook."""
        return self.png
