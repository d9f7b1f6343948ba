"""Pictures without pyplot: no global state, and no display.

matplotlib is imported when the first one is drawn.

>>> figure = new_figure(2.0, 1.0)
>>> as_png(figure)[1:4]
b'PNG'
"""

import re
import warnings
from collections.abc import Collection
from io import BytesIO
from textwrap import wrap
from typing import TYPE_CHECKING, Final

import typer

from maskedlark.escape import escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS_PER_INCH: Final = 120
_MISSING: Final = re.compile(r"Glyph (\d+) ")
_MOST_NAMED: Final = 12
# Letters of a heading in an inch, and the inches of a line of it
_HEADING_LETTERS: Final = 16
_HEADING_LINE: Final = 0.16


def new_figure(width: float, height: float, heading: str = "") -> "Figure":
    """Create an empty figure of so many inches, whose parts make room for each other.

    A heading is wrapped to the width, and adds to the height.
    """
    from matplotlib.figure import Figure

    lines = wrap(heading, int(width * _HEADING_LETTERS))
    figure = Figure(figsize=(width, height + _HEADING_LINE * len(lines)), layout="constrained")
    if lines:
        # Names are no formulas: prices have $
        figure.suptitle("\n".join(lines), fontsize=8, parse_math=False)
    return figure


def as_png(figure: "Figure") -> bytes:
    """Encode the figure as a PNG file.

    Letters that the usual font lacks are drawn in another font of the machine; letters that none has are
    named in one warning on standard error.
    """
    from matplotlib.text import Text

    picture, missing = _draw(figure)
    if missing and (families := _families_with(missing)):
        for text in figure.findobj(Text):
            text.set_fontfamily([*text.get_fontfamily(), *families])
        picture, missing = _draw(figure)
    if missing:
        named = escape("".join(chr(code) for code in sorted(missing)[:_MOST_NAMED]))
        more = "" if len(missing) <= _MOST_NAMED else f" and {len(missing) - _MOST_NAMED} more"
        typer.echo(
            f"warning: no font of this machine has the letters {named}{more}, which the picture shows "
            "as boxes: install one, such as Debian's fonts-noto-cjk or fonts-noto-core",
            err=True,
        )
    return picture


def _draw(figure: "Figure") -> tuple[bytes, set[int]]:
    """Return a picture, and the code points that its fonts lack."""
    picture = BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(picture, format="png", dpi=_DOTS_PER_INCH)
    missing = set[int]()
    for one in caught:
        if found := _MISSING.match(str(one.message)):
            missing.add(int(found[1]))
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return picture.getvalue(), missing


def _families_with(letters: Collection[int]) -> list[str]:
    """Return fonts of this machine that have these code points, as far as any has."""
    from matplotlib.font_manager import fontManager, get_font

    left, families = set(letters), list[str]()
    # The last resort has a box for every letter
    usual = [
        font for font in fontManager.ttflist if font.style == "normal" and "Last Resort" not in font.name
    ]
    for font in sorted(usual, key=lambda font: (font.name, font.fname)):
        if not left:
            break
        try:
            found = {code for code in left if get_font(font.fname).get_char_index(code)}
        except (OSError, RuntimeError):  # matplotlib remembers fonts that are gone
            continue
        if found:
            left -= found
            families.append(font.name)
    return families
