"""Pictures without pyplot: no global state, and no display.

matplotlib is imported when the first one is drawn.

>>> figure = new_figure(2.0, 1.0)
>>> as_png(figure)[1:4]
b'PNG'
"""

from io import BytesIO
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS_PER_INCH: Final = 120


def new_figure(width: float, height: float) -> "Figure":
    """Create an empty figure of so many inches, whose parts make room for each other."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def as_png(figure: "Figure") -> bytes:
    """Encode the figure as a PNG file."""
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=_DOTS_PER_INCH)
    return picture.getvalue()
