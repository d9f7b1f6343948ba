// What a task measures: named values that are summed, named keys to group by. maskedlark/reports/measurement.py

import { invalidExample } from "./errors.ts";
import { boolean, Fields, float, integer, list, must, nullable, type Read, text } from "./shape.ts";

const MAX_MAGNITUDE = 2 ** 31 - 1;
const MAX_CODE = 2 ** 32 - 1;
const NAME = text(1, 64, /^[a-z][a-z0-9_]{0,63}$/);
const INTEGER = integer(-MAX_MAGNITUDE, MAX_MAGNITUDE);
const TITLE = text(1, 100, /^[^\x00-\x1f\x7f-\x9f]*$/);

export interface Value {
  readonly name: string;
  /** What results call it; empty: its name. */
  readonly title: string;
  readonly low: number;
  readonly high: number;
  readonly isClamped: boolean;
  readonly bucketStarts: readonly number[];
}

export interface Key {
  readonly name: string;
  readonly title: string;
  /** Codes are below this. */
  readonly below: number;
  readonly categories: readonly string[];
}

export interface Measurement {
  readonly values: readonly Value[];
  readonly keys: readonly Key[];
}

export interface Measured {
  readonly keys: readonly number[];
  readonly values: readonly number[];
}

const readTitle = (fields: Fields): string => (fields.has("title") ? fields.get("title", TITLE) : "");

const readValue: Read<Value> = (node, name) => {
  const required = ["bucket_starts", "high", "is_clamped", "low", "name"];
  const fields = new Fields(node, name, required, ["parts_per_unit", "title"]);
  // Of results alone: reports hold the parts
  if (fields.has("parts_per_unit")) fields.get("parts_per_unit", integer(2, 10 ** 9));
  const value = {
    name: fields.get("name", NAME),
    title: readTitle(fields),
    low: fields.get("low", INTEGER),
    high: fields.get("high", INTEGER),
    isClamped: fields.get("is_clamped", boolean),
    bucketStarts: fields.get("bucket_starts", list(0, 1024, INTEGER)),
  };
  const starts = value.bucketStarts;
  must(value.name !== "count", "every report has the value count already");
  must(value.low < value.high, "low is below high");
  must(
    starts.length === 0 || (starts[0] === value.low && starts.at(-1)! <= value.high),
    "bucket_starts begin at low and stay within high",
  );
  must(
    starts.every((start, at) => at === 0 || start > starts[at - 1]!),
    "bucket_starts ascend",
  );
  return value;
};

const readKey: Read<Key> = (node, name) => {
  const fields = new Fields(node, name, ["categories", "name", "size"], ["title"]);
  const size = fields.get("size", nullable(integer(1, 2 ** 22)));
  const categories = fields.get("categories", list(0, 2 ** 22, text(1, 100)));
  must(categories.length === 0 || categories.length === size, "categories name every code of a key with a size");
  must(new Set(categories).size === categories.length, "categories are distinct");
  return { name: fields.get("name", NAME), title: readTitle(fields), below: size ?? MAX_CODE + 1, categories };
};

export const readMeasurement: Read<Measurement> = (node, name) => {
  const fields = new Fields(node, name, ["keys", "min_cell_count", "values"], ["small_cell_delta"]);
  fields.get("min_cell_count", integer(1, 2 ** 30));
  if (fields.has("small_cell_delta")) {
    fields.get("small_cell_delta", float((delta) => delta >= 2 ** -60 && delta < 0.5));
  }
  const measurement = {
    values: fields.get("values", list(0, 64, readValue)),
    keys: fields.get("keys", list(0, 16, readKey)),
  };
  for (const named of [measurement.values, measurement.keys]) {
    const names = named.flatMap((one) => [one.name, one.title]).filter((one) => one !== "");
    must(new Set(names).size === names.length, "names and titles are distinct");
  }
  must(
    measurement.values.every((value) => value.title !== "count"),
    "every report has the value count already",
  );
  return measurement;
};

/** The checked codes of a report's keys. */
export function keyCodes(measurement: Measurement, measured: Measured): number[] {
  if (measured.keys.length !== measurement.keys.length || measured.values.length !== measurement.values.length) {
    throw invalidExample(`the task declares ${measurement.keys.length} keys and ${measurement.values.length} values`);
  }
  measurement.keys.forEach((key, at) => {
    const code = measured.keys[at]!;
    if (!Number.isInteger(code) || code < 0 || code >= key.below) {
      throw invalidExample(`key ${key.name} takes codes below ${key.below}`);
    }
  });
  return [...measured.keys];
}

/** What a real report shares: the count, then each value and a one at its bucket. */
export function valueColumns(measurement: Measurement, measured: Measured): number[] {
  const columns = [1];
  measurement.values.forEach((value, at) => {
    const held = within(value, measured.values[at]!);
    columns.push(held);
    const bucket = value.bucketStarts.findLastIndex((start) => start <= held);
    value.bucketStarts.forEach((_, number) => {
      columns.push(number === bucket ? 1 : 0);
    });
  });
  return columns;
}

export function numColumns(measurement: Measurement): number {
  return measurement.values.reduce((sum, value) => sum + 1 + value.bucketStarts.length, 1);
}

function within(value: Value, held: number): number {
  if (!Number.isSafeInteger(held)) throw invalidExample(`value ${value.name} is an integer`);
  if (value.isClamped) return Math.min(Math.max(held, value.low), value.high);
  if (held < value.low || held > value.high) {
    throw invalidExample(`value ${value.name} lies outside its bounds ${value.low}..${value.high}`);
  }
  return held;
}
