// Grey images as histograms of oriented gradients, in whole numbers below 2^31: maskedlark/encoding/images.py in Python.

import type { Bytes } from "./bytes.ts";

export const PIXELS_OF_CELL = 4;
export const MAX_SIDE = 256;
const OCTANTS = 8;
const TENT = [1, 3, 5, 7, 7, 5, 3, 1] as const;
const TENT_DIVISOR = 64;
const LEAST_NORM = 64;
const SQUARED_TOP = 90_000;
const TOP = 255;

/** The histograms of an image's pixels, row by row; height and width are multiples of PIXELS_OF_CELL. */
export function hog(pixels: Bytes, height: number, width: number): Bytes {
  const [rows, columns] = [height / PIXELS_OF_CELL, width / PIXELS_OF_CELL];
  const entries = new Int32Array(rows * columns * OCTANTS);
  const at = (y: number, x: number) => (y < 0 || y >= height || x < 0 || x >= width ? 0 : pixels[y * width + x]!);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const right = at(y, x + 1) - at(y, x - 1);
      const down = at(y + 1, x) - at(y - 1, x);
      const length = root(right * right + down * down);
      if (length > 0) spread(entries, rows, columns, y, x, octant(right, down), length);
    }
  }
  for (let place = 0; place < entries.length; place += 1) entries[place] = Math.floor(entries[place]! / TENT_DIVISOR);
  return normalised(entries, rows, columns);
}

/** Add a pixel's length to the cells whose 8 x 8 pixels it is among: up to two in either axis. */
function spread(entries: Int32Array, rows: number, columns: number, y: number, x: number, direction: number, length: number): void {
  const [firstRow, firstColumn] = [Math.floor((y + 2) / PIXELS_OF_CELL) - 1, Math.floor((x + 2) / PIXELS_OF_CELL) - 1];
  for (let row = Math.max(firstRow, 0); row <= firstRow + 1 && row < rows; row += 1) {
    for (let column = Math.max(firstColumn, 0); column <= firstColumn + 1 && column < columns; column += 1) {
      const weight = TENT[y + 2 - PIXELS_OF_CELL * row]! * TENT[x + 2 - PIXELS_OF_CELL * column]!;
      entries[(row * columns + column) * OCTANTS + direction]! += weight * length;
    }
  }
}

function normalised(entries: Int32Array, rows: number, columns: number): Bytes {
  const energy = (row: number, column: number) => {
    if (row < 0 || row >= rows || column < 0 || column >= columns) return 0;
    const start = (row * columns + column) * OCTANTS;
    return entries.subarray(start, start + OCTANTS).reduce((sum, entry) => sum + entry * entry, 0);
  };
  return Uint8Array.from(entries, (entry, place) => {
    const cell = Math.floor(place / OCTANTS);
    const [row, column] = [Math.floor(cell / columns), cell % columns];
    let around = 0;
    for (let dy = -1; dy <= 1; dy += 1) for (let dx = -1; dx <= 1; dx += 1) around += energy(row + dy, column + dx);
    return Math.min(root(Math.floor((SQUARED_TOP * entry) / (LEAST_NORM + root(around)))), TOP);
  });
}

/** The octant of a gradient, counted from the right by way of down. */
function octant(right: number, down: number): number {
  const half = down < 0 || (down === 0 && right < 0) ? 4 : 0;
  const [ahead, aside] = half === 4 ? [-right, -down] : [right, down];
  if (ahead > 0) return half + (aside >= ahead ? 1 : 0);
  return half + 2 + (-ahead >= aside ? 1 : 0);
}

/** The whole root, rounded down; whichever way an engine's Math.sqrt rounds. */
function root(square: number): number {
  const near = Math.floor(Math.sqrt(square));
  if (near * near > square) return near - 1;
  return (near + 1) * (near + 1) <= square ? near + 1 : near;
}
