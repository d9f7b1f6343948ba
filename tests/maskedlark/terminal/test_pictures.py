"""Names in any script are drawn in fonts that have them, or named in one line."""

import pytest

from maskedlark.terminal.pictures import as_png, new_figure

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    ("letters", "warned"),
    [
        ("Łódź Київ", ""),
        ("\u1d81", ""),  # matplotlib's own STIX has it, and its usual font has not
        ("\U0010fffd", r"no font of this machine has the letters \U0010fffd, which"),
        ("".join(map(chr, range(0x10FF00, 0x10FF20))), " and 20 more, which"),
    ],
)
def test_letters_are_drawn_in_a_font_that_has_them_or_named_in_one_line(
    letters: str, warned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = new_figure(2.0, 1.0)
    figure.text(0.5, 0.5, letters)
    assert as_png(figure).startswith(b"\x89PNG")
    said = capsys.readouterr().err
    assert warned in said
    assert said.count("\n") == bool(warned)
