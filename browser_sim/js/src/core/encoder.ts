// Rows of raw cells as bytes, by the encoder that the signed task names: maskedlark/encoding/ in Python.
// A file of its own in dist/, loaded where a page gives rows in the place of features.
//
//   const encoder = await openEncoder(encoded, task.encoder);
//   encoder.features({ age: "39", work: "Private" });

import { type Bytes, digest, equal } from "./bytes.ts";
import { MAX_ENCODER_BYTES, parse } from "./canonical.ts";
import { type DateOrder, datePart, partOf, whyNoDate } from "./dates.ts";
import { MaskedLarkError } from "./errors.ts";
import { hog, MAX_SIDE, PIXELS_OF_CELL } from "./images.ts";
import { Fields, float, integer, list, must, nullable, oneOf, type Read, text } from "./shape.ts";

const TOP = 255;
const MAX_COLUMNS = 65_536;
const MAX_ROWS = 1 << 20;
const ID_ROWS = 2;
const WORD = (1n << 64n) - 1n;
const MAX_NUMBER_LENGTH = 400;
const SPACE = " \t\n\r\f\v";
const MISSING = new Set(["", "?", "-", "--", ".", "n/a", "#n/a", "na", "<na>", "nan", "nat", "none", "null"]);
const NUMBER = /^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$/;

/** What a cell says: its text as it would stand in a file, a number, or null where nothing is known. */
export type Cell = string | number | null;
/** A row by the names of its columns; an image may be its pixels' bytes, row by row. */
export type Row = Readonly<Record<string, Cell | Bytes>>;

type Code = (said: string | null) => number;

interface Coded {
  readonly name: string;
  readonly code: Code;
}

/** A column, and the features that a cell becomes. */
interface Spelled {
  readonly name: string;
  readonly features: (cell: Cell | Bytes) => ArrayLike<number>;
}

/** A cell is not what its column holds. The message names the column and never the cell. */
export class WrongCell extends MaskedLarkError {
  readonly column: string;

  constructor(column: string, why: string) {
    super("InvalidExample", `column ${JSON.stringify(column)}: ${why}`);
    this.column = column;
  }
}

/** How a row becomes features and a label. */
export class Encoder {
  readonly #columns: readonly Spelled[];
  readonly #label: Coded | null;
  readonly #orders: ReadonlyMap<string, DateOrder>;

  constructor(columns: readonly Spelled[], label: Coded | null, orders: ReadonlyMap<string, DateOrder>) {
    this.#columns = columns;
    this.#label = label;
    this.#orders = orders;
  }

  /** The features of a row, which may have a date in the place of its parts. Throws WrongCell for a column that the row lacks, what is no date, a word among numbers, and an image of another size. */
  features(row: Row): Bytes {
    return Uint8Array.from(
      this.#columns.flatMap(({ name, features }) => {
        const cell = Object.hasOwn(row, name) ? (row[name] ?? null) : partOfRow(row, name, this.#orders);
        return Array.from(named(name, () => features(cell)));
      }),
    );
  }

  /** The number of a label. Throws WrongCell where it is missing, or none of the encoder's. */
  label(cell: Cell): number {
    if (this.#label === null) throw new MaskedLarkError("InvalidExample", "the task's encoder was fitted without a label");
    return coded(this.#label, cell);
  }
}

/**
 * Parse and check the bytes that a task host serves.
 *
 * @param encoded The raw bytes; they are never spelled again.
 * @param named What the signed task names the encoder by.
 * @throws MaskedLarkError InvalidTask
 */
export async function openEncoder(encoded: Bytes, named: Bytes): Promise<Encoder> {
  const root = parse(encoded, "encoder", MAX_ENCODER_BYTES);
  must(equal(await digest("encoder", encoded), named), "the encoder is not the one that the task names");
  const fields = new Fields(root, "encoder", ["columns", "label", "version"], ["dates"]);
  fields.get("version", integer(1, 1));
  const columns = fields.get("columns", list(1, MAX_COLUMNS, readColumn));
  const label = fields.get("label", nullable(readLabel));
  areDistinct([...columns, ...(label === null ? [] : [label])].map((one) => one.name), "names of columns");
  const dates = fields.has("dates") ? fields.get("dates", list(1, MAX_COLUMNS, readOrder)) : [];
  areDistinct(dates.map(([name]) => name), "names of dates");
  const read = new Set(columns.map((one) => partOf(one.name)?.[0]));
  must(dates.every(([name]) => read.has(name)), "a part of each date is a column");
  return new Encoder(columns, label, new Map(dates));
}

/** The part of a date that a row has in its place. */
function partOfRow(row: Row, name: string, orders: ReadonlyMap<string, DateOrder>): Cell {
  const [of, part] = partOf(name) ?? ["", ""];
  if (part === "" || !Object.hasOwn(row, of)) throw new WrongCell(name, "the row has no cell of this name");
  const cell = row[of] ?? null;
  const spelled = cell instanceof Uint8Array ? "" : said(cell);
  const found = spelled === null ? null : datePart(spelled, part, orders.get(of));
  if (found === undefined) throw new WrongCell(of, whyNoDate(spelled!, orders.get(of)));
  return found;
}

/** The cell without space around it, or null where it says nothing. */
function said(cell: Cell): string | null {
  if (cell === null) return null;
  const spelled = String(cell);
  let start = 0;
  let end = spelled.length;
  while (start < end && SPACE.includes(spelled[start]!)) start += 1;
  while (end > start && SPACE.includes(spelled[end - 1]!)) end -= 1;
  const trimmed = spelled.slice(start, end);
  return MISSING.has(trimmed.replace(/[A-Z]/g, (letter) => letter.toLowerCase())) ? null : trimmed;
}

/** The number that a cell says, or undefined if it is none, or not finite. */
function number(spelled: string): number | undefined {
  if (spelled.length > MAX_NUMBER_LENGTH || !NUMBER.test(spelled)) return undefined;
  const value = Number(spelled);
  return Number.isFinite(value) ? value : undefined;
}

function coded(column: Coded, cell: Cell): number {
  return named(column.name, () => column.code(said(cell)));
}

function named<T>(column: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof Wrong) throw new WrongCell(column, error.message);
    throw error;
  }
}

/** A column whose cells are each one number: the features are its bytes, lowest first. */
function spelled(name: string, code: Code, bytes: number): Spelled {
  const features = (cell: Cell | Bytes) => {
    if (cell instanceof Uint8Array) throw new Wrong("it holds bytes, which only a column of images has");
    const found = code(said(cell));
    return Array.from({ length: bytes }, (_, place) => (found >> (8 * place)) & TOP);
  };
  return { name, features };
}

/** The pixels of a cell: as they are, or two hexadecimal digits each. */
function pixels(cell: Cell | Bytes, height: number, width: number): Bytes {
  const count = height * width;
  if (cell instanceof Uint8Array) {
    if (cell.length !== count) throw new Wrong(`an image of ${height} x ${width} pixels has ${count} bytes`);
    return cell;
  }
  const digits = said(cell);
  if (digits === null) throw new Wrong("the image is missing");
  if (digits.length !== 2 * count || !/^[0-9A-Fa-f]*$/.test(digits)) {
    throw new Wrong(`an image of ${height} x ${width} pixels has ${2 * count} hexadecimal digits`);
  }
  return Uint8Array.from({ length: count }, (_, at) => parseInt(digits.slice(2 * at, 2 * at + 2), 16));
}

/** What is wrong with a cell, before it is known which column it stands in. */
class Wrong extends Error {}

const word = text(1, 200);

const side: Read<number> = (node, name) => {
  const pixels = integer(PIXELS_OF_CELL, MAX_SIDE)(node, name);
  must(pixels % PIXELS_OF_CELL === 0, `${name} is a multiple of ${PIXELS_OF_CELL}`);
  return pixels;
};

const readColumn: Read<Spelled> = (node, name) => {
  const kind = kindOf(node, name, "category", "hash", "id", "image", "number");
  if (kind === "image") {
    const fields = new Fields(node, name, ["height", "kind", "name", "width"]);
    const [height, width] = [fields.get("height", side), fields.get("width", side)];
    return { name: fields.get("name", word), features: (cell) => hog(pixels(cell, height, width), height, width) };
  }
  if (kind === "hash" || kind === "id") {
    const own = kind === "id" ? "words" : "rows";
    const fields = new Fields(node, name, ["kind", "name", own]);
    const words = kind === "id" ? fields.get(own, list(0, MAX_ROWS - ID_ROWS, word)) : null;
    const rows = words === null ? fields.get(own, integer(2, MAX_ROWS)) : words.length + ID_ROWS;
    const row = words === null ? hashed(rows) : listed(words);
    const code: Code = (cell) => (cell === null ? 0 : row(cell));
    return spelled(fields.get("name", word), code, rows <= 1 << 8 ? 1 : rows <= 1 << 16 ? 2 : 3);
  }
  const own = kind === "number" ? "edges" : "categories";
  const fields = new Fields(node, name, [own, "first", "kind", "missing", "name"]);
  const first = fields.get("first", integer(0, 1));
  const missing = fields.get("missing", integer(0, TOP));
  const code =
    kind === "number"
      ? binned(fields.get("edges", list(0, TOP, float(() => true))), first)
      : placed(fields.get("categories", list(0, TOP, word)), first);
  return spelled(fields.get("name", word), (cell) => (cell === null ? missing : code(cell)), 1);
};

const readOrder: Read<readonly [name: string, order: DateOrder]> = (node, name) => {
  const fields = new Fields(node, name, ["name", "order"]);
  return [fields.get("name", word), fields.get("order", oneOf("dmy", "mdy"))];
};

const readLabel: Read<Coded> = (node, name) => {
  const kind = kindOf(node, name, "classes", "values");
  const fields = new Fields(node, name, [...(kind === "classes" ? ["classes"] : []), "kind", "name"]);
  const code = kind === "classes" ? ofClasses(fields.get("classes", list(1, MAX_COLUMNS, word))) : ofValue;
  return { name: fields.get("name", word), code };
};

function kindOf<T extends string>(node: Parameters<Read<T>>[0], name: string, ...kinds: readonly T[]): T {
  const kind = node.kind === "object" ? node.fields.get("kind") : undefined;
  must(kind !== undefined, `${name}: kind is missing`);
  return oneOf(...kinds)(kind!, `${name}.kind`);
}

/** The byte of a number's bin: bins are spread evenly over the bytes, halves upwards. */
function binned(edges: readonly number[], first: number): (cell: string) => number {
  must(edges.every((edge, at) => at === 0 || edges[at - 1]! < edge), "edges ascend");
  must(edges.length <= TOP - first, "there is a byte for each bin");
  return (cell) => {
    const value = number(cell);
    if (value === undefined) {
      throw new Wrong("it holds a word, or a number that is not finite, where the encoder has numbers");
    }
    const bin = edges.filter((edge) => edge <= value).length;
    const bins = edges.length;
    return first + (bins === 0 ? 0 : Math.floor((2 * bin * (TOP - first) + bins) / (2 * bins)));
  };
}

/** The byte of a word's place, or the one after the last for any other word. */
function placed(categories: readonly string[], first: number): (cell: string) => number {
  areDistinct(categories, "categories");
  must(first + categories.length <= TOP, "there is a byte for each category and one for other words");
  const places = new Map(categories.map((category, at) => [category, first + at]));
  return (cell) => places.get(cell) ?? first + categories.length;
}

/** The row of an id: its place among the words, or the row of the rest. */
function listed(words: readonly string[]): (cell: string) => number {
  areDistinct(words, "words");
  const rows = new Map(words.map((one, at) => [one, ID_ROWS + at]));
  return (cell) => rows.get(cell) ?? 1;
}

/** The row of an id by its hash: FNV-1a of its UTF-8 bytes, then SplitMix64's finaliser. */
function hashed(rows: number): (cell: string) => number {
  const others = BigInt(rows - 1);
  return (cell) => {
    let state = 0xcbf29ce484222325n;
    for (const byte of new TextEncoder().encode(cell)) state = ((state ^ BigInt(byte)) * 0x100000001b3n) & WORD;
    state = ((state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n) & WORD;
    state = ((state ^ (state >> 27n)) * 0x94d049bb133111ebn) & WORD;
    return 1 + Number((state ^ (state >> 31n)) % others);
  };
}

/** The class of a cell: by its text, or as a number. */
function ofClasses(classes: readonly string[]): Code {
  areDistinct(classes, "classes");
  return (cell) => {
    if (cell === null) throw new Wrong("the label is missing");
    const value = number(cell);
    const exact = classes.indexOf(cell);
    const found = exact >= 0 || value === undefined ? exact : classes.findIndex((one) => number(one) === value);
    if (found < 0) throw new Wrong(`its label is none of the encoder's ${classes.length} classes`);
    return found;
  };
}

const ofValue: Code = (cell) => {
  const value = cell === null ? undefined : number(cell);
  if (value === undefined) throw new Wrong("labels of kind values are finite numbers; it holds something else");
  return value;
};

function areDistinct(words: readonly string[], what: string): void {
  must(new Set(words).size === words.length, `${what} are distinct`);
}
