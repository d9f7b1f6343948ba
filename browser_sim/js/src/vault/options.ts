// Checks of everything that a page sends. Each option has a type, a range and a bound on its size, which is looked at
// before anything is copied; an error names the option and what was expected, and never the value.

import { type Bytes, fromHex } from "../core/bytes.ts";
import type { Cell, Row } from "../core/encoder.ts";
import { invalidExample } from "../core/errors.ts";
import type { Measured } from "../core/measurement.ts";
import type { Task } from "../core/task.ts";
import type { Settings } from "./store.ts";

const DAY_S = 86_400;
const MOST_DAYS = 366;
const MOST_MATCH_VALUES = 100;
const MOST_ORIGINS = 10;
const MOST_CALLING_ORIGINS = 10_000;
const MOST_HELPERS = 16;
const MOST_REPORTS = 10_000;
const MOST_POPULATION_ROWS = 10_000;
const MOST_POPULATION_BYTES = 2 ** 22;
const MOST_URL = 2_048;
const MOST_COLUMNS = 65_536;
const MOST_ROW_CHARACTERS = 2 ** 20;
const MATCH_VALUE = 2 ** 32 - 1;
const PRIORITY = 2 ** 31;
const MOST_NAME_SHOWN = 40;

const OPEN_OPTIONS = ["bundle", "trustedHelpers", "consent", "maxDelayS", "cap", "population"] as const;
const IMPRESSION_OPTIONS = [
  "features",
  "row",
  "measured",
  "matchValue",
  "lifetimeDays",
  "conversionOrigins",
  "priority",
] as const;
const VAULT_OPTIONS = ["intake", "origins", "trustedHelpers", "tasks", "leastDelayS", "send", "worker"] as const;
const CONVERSION_OPTIONS = ["label", "values", "matchValues", "lookbackDays", "impressionOrigins"] as const;

type Given = Readonly<Record<string, unknown>>;

/** What a page asks of a task when it opens it; `settings` are checked against the task once its bundle is read. */
export interface OpenRequest {
  readonly bundle: string;
  readonly trusted: readonly Bytes[];
  readonly settings: unknown;
}

export interface ImpressionRequest {
  /** Undefined where the page gives a row. */
  readonly features: Uint8Array | undefined;
  readonly row: Row | undefined;
  readonly measured: Measured | null;
  readonly matchValue: number;
  readonly priority: number;
  readonly lifetimeS: number;
  readonly conversionOrigins: readonly string[];
}

export interface ConversionRequest {
  readonly label: Cell;
  readonly values: readonly number[] | null;
  readonly matchValues: readonly number[];
  readonly lookbackS: number;
  readonly impressionOrigins: readonly string[];
}

/** Refuse options of the vault's own site that are mistyped: a text would allow every origin that is a part of it. */
export function checkVault(given: unknown): void {
  const { intake, origins, trustedHelpers, tasks, leastDelayS, send, worker } = fields(given, "serveVault", VAULT_OPTIONS);
  url(intake, "intake");
  list(origins, "origins", MOST_CALLING_ORIGINS, origin);
  list(trustedHelpers, "trustedHelpers", MOST_HELPERS, helperKey);
  for (const [id, allowed] of Object.entries(object(tasks ?? {}, "tasks"))) {
    // All origins may open a task that is not named
    if (!/^[0-9a-f]{64}$/.test(id)) throw wrong("tasks", "tasks' ids: 32 bytes in lower-case hexadecimal");
    list(allowed, "tasks", MOST_CALLING_ORIGINS, origin);
  }
  if (leastDelayS != null) number(leastDelayS, "leastDelayS", 0, MOST_DAYS * DAY_S);
  if (send !== undefined && typeof send !== "function") throw wrong("send", "a function");
  if (worker !== undefined && typeof worker !== "string") throw wrong("worker", "a script's URL");
}

export function readOpen(given: unknown): OpenRequest {
  const { bundle, trustedHelpers, consent, maxDelayS, cap, population } = fields(given, "options", OPEN_OPTIONS);
  if (consent !== true) throw wrong("consent", "true or false"); // a No is answered before anything is read
  return {
    bundle: url(bundle, "bundle"),
    trusted: list(trustedHelpers, "trustedHelpers", MOST_HELPERS, helperKey),
    settings: { maxDelayS: maxDelayS ?? DAY_S, cap: cap ?? null, population: population ?? [] },
  };
}

/** A task's settings, from a page or from storage. */
export function readSettings(given: unknown, task: Task): Settings {
  const { maxDelayS, cap, population } = fields(given, "settings", ["maxDelayS", "cap", "population"]);
  const numKeys = task.measurement?.keys.length ?? 0;
  const mostRows = Math.min(MOST_POPULATION_ROWS, Math.floor(MOST_POPULATION_BYTES / (task.numFeatures + 8 * numKeys)));
  return {
    maxDelayS: number(maxDelayS, "maxDelayS", 0, MOST_DAYS * DAY_S),
    cap: cap === null ? null : readCap(cap),
    population: list(population, "population", mostRows, (row, name) => {
      const { features, keys } = fields(row, name, ["features", "keys"]);
      return {
        features: bytes(features, `${name}.features`, task.numFeatures),
        keys: exactly(numKeys, keys, `${name}.keys`, (code, codeName, at) =>
          integer(code, codeName, 0, task.measurement!.keys[at]!.below - 1),
        ),
      };
    }),
  };
}

export function readImpression(given: unknown, task: Task): ImpressionRequest {
  const options = fields(given, "options", IMPRESSION_OPTIONS);
  if ((options.features === undefined) === (options.row === undefined)) {
    throw invalidExample("give either features or a row");
  }
  return {
    features: options.features === undefined ? undefined : bytes(options.features, "features", task.numFeatures),
    row: options.row === undefined ? undefined : readRow(options.row),
    measured: readMeasured(options.measured ?? null),
    matchValue: integer(options.matchValue ?? 0, "matchValue", 0, MATCH_VALUE),
    priority: number(options.priority ?? 0, "priority", -PRIORITY, PRIORITY),
    lifetimeS: number(options.lifetimeDays, "lifetimeDays", 0, MOST_DAYS) * DAY_S,
    conversionOrigins: list(options.conversionOrigins ?? [], "conversionOrigins", MOST_ORIGINS, origin),
  };
}

export function readConversion(given: unknown): ConversionRequest {
  const { label, values, matchValues, lookbackDays, impressionOrigins } = fields(given, "options", CONVERSION_OPTIONS);
  return {
    label: cell(label, "label"),
    values: values == null ? null : numbers(values, "values", 64),
    matchValues: list(matchValues, "matchValues", MOST_MATCH_VALUES, (value, name) => integer(value, name, 0, MATCH_VALUE)),
    lookbackS: number(lookbackDays, "lookbackDays", 0, MOST_DAYS) * DAY_S,
    impressionOrigins: list(impressionOrigins ?? [], "impressionOrigins", MOST_ORIGINS, origin),
  };
}

function readCap(given: unknown): { reports: number; days: number } {
  const { reports, days } = fields(given, "cap", ["reports", "days"]);
  return { reports: integer(reports, "cap.reports", 1, MOST_REPORTS), days: number(days, "cap.days", 0, MOST_DAYS) };
}

function readMeasured(given: unknown): Measured | null {
  if (given === null) return null;
  const { keys, values } = fields(given, "measured", ["keys", "values"]);
  return { keys: numbers(keys, "measured.keys", 16), values: numbers(values, "measured.values", 64) };
}

function readRow(given: unknown): Row {
  const row = object(given, "row");
  let columns = 0;
  let characters = 0;
  for (const name in row) {
    const given = row[name];
    const said = given instanceof Uint8Array ? given : cell(given, "row");
    characters += name.length + (said instanceof Uint8Array || typeof said === "string" ? said.length : 0);
    if (++columns > MOST_COLUMNS || characters > MOST_ROW_CHARACTERS) {
      throw wrong("row", `at most ${MOST_COLUMNS} columns and ${MOST_ROW_CHARACTERS} characters`);
    }
  }
  return row as Row;
}

function cell(value: unknown, name: string): Cell {
  const isCell = value === null || typeof value === "number" || (typeof value === "string" && value.length <= MOST_ROW_CHARACTERS);
  if (!isCell) throw wrong(name, "text, a number or null");
  return value;
}

/** An object with no other fields than the known ones: a mistyped option would silently mean its default. */
function fields<K extends string>(value: unknown, name: string, known: readonly K[]): Readonly<Record<K, unknown>> {
  const given = object(value, name);
  for (const field in given) {
    if (!(known as readonly string[]).includes(field)) {
      throw invalidExample(`${name}: ${field.slice(0, MOST_NAME_SHOWN)} is unknown; expected ${known.join(", ")}`);
    }
  }
  return given as Readonly<Record<K, unknown>>;
}

/** An object. Messages are structured clones: none has a getter. */
function object(value: unknown, name: string): Given {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw wrong(name, "an object");
  return value as Given;
}

function list<T>(value: unknown, name: string, most: number, read: (item: unknown, name: string, at: number) => T): T[] {
  if (!Array.isArray(value) || value.length > most) throw wrong(name, `an array of at most ${most}`);
  return Array.from(value, (item: unknown, at) => read(item, `${name}[${at}]`, at));
}

function exactly<T>(count: number, value: unknown, name: string, read: (item: unknown, name: string, at: number) => T): T[] {
  if (!Array.isArray(value) || value.length !== count) throw wrong(name, `an array of ${count}`);
  return list(value, name, count, read);
}

function numbers(value: unknown, name: string, most: number): number[] {
  return list(value, name, most, (item, itemName) => number(item, itemName, -Number.MAX_VALUE, Number.MAX_VALUE));
}

function bytes(value: unknown, name: string, length: number): Uint8Array {
  const isSized = (value instanceof Uint8Array || Array.isArray(value)) && value.length === length;
  if (!isSized) throw wrong(name, `${length} bytes`);
  if (value instanceof Uint8Array) return new Uint8Array(value);
  return Uint8Array.from(value as unknown[], (byte, at) => integer(byte, `${name}[${at}]`, 0, 255));
}

function integer(value: unknown, name: string, low: number, high: number): number {
  if (!Number.isInteger(value)) throw wrong(name, `an integer from ${low} to ${high}`);
  return number(value, name, low, high);
}

function number(value: unknown, name: string, low: number, high: number): number {
  if (typeof value !== "number" || !(value >= low && value <= high)) throw wrong(name, `a number from ${low} to ${high}`);
  return value;
}

function url(value: unknown, name: string): string {
  const parsed = parsedUrl(value);
  if (parsed === null || !/^https?:$/.test(parsed.protocol) || parsed.username || parsed.password) {
    throw wrong(name, `an http(s) URL of at most ${MOST_URL} characters, without a password`);
  }
  return parsed.href;
}

function origin(value: unknown, name: string): string {
  const parsed = parsedUrl(value);
  if (parsed === null || parsed.origin !== value) throw wrong(name, "an origin, such as https://shop.example");
  return parsed.origin;
}

function parsedUrl(value: unknown): URL | null {
  if (typeof value !== "string" || value.length > MOST_URL) return null;
  try {
    return new URL(value);
  } catch {
    return null;
  }
}

function helperKey(value: unknown, name: string): Bytes {
  const key = typeof value === "string" && value.length === 64 ? fromHex(value) : undefined;
  if (key === undefined) throw wrong(name, "a helper's key: 32 bytes in lower-case hexadecimal");
  return key;
}

function wrong(name: string, expected: string): Error {
  return invalidExample(`${name}: expected ${expected}`);
}
