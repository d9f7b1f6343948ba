"""Histograms of oriented gradients: the rule by plain loops, its bounds, and columns of images."""

import math
from typing import Any

import numpy as np
import pytest

from maskedlark.canonical import build, encode
from maskedlark.encoding.encoder import Encoder, ImageColumn, NumberColumn, WrongCell, read_encoder
from maskedlark.encoding.images import hog
from maskedlark.errors import InvalidTask

TENT = (1, 3, 5, 7, 7, 5, 3, 1)


def by_loops(image: Any) -> list[int]:
    """The rule of the module's docstring, one pixel at a time; octants by the angle."""
    height, width = image.shape
    wide = np.pad(image.astype(int), 1)
    rows, columns = height // 4, width // 4
    entries = np.zeros((rows, columns, 8), int)
    for y in range(height):
        for x in range(width):
            right, down = int(wide[y + 1, x + 2] - wide[y + 1, x]), int(wide[y + 2, x + 1] - wide[y, x + 1])
            octant = int(math.degrees(math.atan2(down, right)) % 360 // 45)
            for row in range(rows):
                for column in range(columns):
                    top, left = y + 2 - 4 * row, x + 2 - 4 * column
                    if 0 <= top < 8 and 0 <= left < 8:
                        length = math.isqrt(right * right + down * down)
                        entries[row, column, octant] += TENT[top] * TENT[left] * length
    entries //= 64
    energy = np.pad((entries**2).sum(axis=2), 1)
    return [
        min(
            255, math.isqrt(90_000 * int(entry) // (64 + math.isqrt(int(energy[r : r + 3, c : c + 3].sum()))))
        )
        for r in range(rows)
        for c in range(columns)
        for entry in entries[r, c]
    ]


def test_histograms_follow_the_rule() -> None:
    dice = np.random.default_rng(51)
    images = dice.integers(0, 256, (12, 8, 12), dtype=np.uint8)
    images[3:6] >>= 5
    images[6:9] = np.where(images[6:9] > 128, 255, 0)
    assert hog(images).tolist() == [by_loops(image) for image in images]


def test_no_intermediate_number_reaches_two_to_the_31() -> None:
    most_length = math.isqrt(2 * 255**2)
    most_entry = sum(TENT) ** 2 * most_length // 64
    assert sum(TENT) ** 2 * most_length < 1 << 31
    assert 90_000 * most_entry < 1 << 31
    assert 9 * most_entry**2 < 1 << 31  # the entries of a cell share its length


def test_blank_images_are_black_within_and_many_images_are_encoded_in_parts() -> None:
    images = np.zeros((70, 128, 128), np.uint8)
    images[69, 64:, :] = 9
    found = hog(images)
    assert not found[:69].any()
    assert found[69].any()
    assert (found[69] == hog(images[69:])).all()
    assert hog(np.empty((0, 8, 8), np.uint8)).shape == (0, 32)


def test_an_encoder_of_images_takes_pixels_and_cells() -> None:
    encoder = Encoder(columns=(ImageColumn(name="i", height=8, width=12),))
    images = np.random.default_rng(1).integers(0, 256, (3, 8, 12), dtype=np.uint8)
    cells: list[str | None] = [image.tobytes().hex() for image in images]
    assert read_encoder(encode(encoder)) == encoder
    assert encoder.num_features == len(encoder.feature_names) == 48
    assert (encoder.features({"i": cells}) == encoder.image_features(images)).all()
    with pytest.raises(InvalidTask, match="images have 12 x 8 pixels, but the encoder takes 8 x 12"):
        encoder.image_features(images.transpose(0, 2, 1))
    mixed = Encoder(columns=(*encoder.columns, NumberColumn(name="n", first=0, missing=0, edges=())))
    with pytest.raises(InvalidTask, match="fitted to images"):
        mixed.image_features(images)


@pytest.mark.parametrize("cell", [None, "", "00", "0" * 33, "0" * 31 + "g", "\u0660" * 32, "00 " * 16])
def test_a_cell_that_is_no_image_is_refused_with_its_place(cell: str | None) -> None:
    encoder = Encoder(columns=(ImageColumn(name="i", height=4, width=4),))
    with pytest.raises(WrongCell, match=r"column 'i', row 2: .*image"):
        encoder.features({"i": ["0F" * 16, cell]})


@pytest.mark.parametrize(("height", "width"), [(0, 4), (2, 4), (4, 6), (260, 4), (4, 1 << 40), (-4, 4)])
def test_sizes_that_have_no_cells_or_too_many_are_refused(height: int, width: int) -> None:
    with pytest.raises(InvalidTask, match=r"height|width"):
        build(ImageColumn, {"kind": "image", "name": "i", "height": height, "width": width})
