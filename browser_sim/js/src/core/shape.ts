// Reading typed fields out of a canonical tree; anything else than what a field may hold is InvalidTask.

import { type Bytes, fromHex } from "./bytes.ts";
import { type Node } from "./canonical.ts";
import { invalidTask } from "./errors.ts";

export type Read<T> = (node: Node, name: string) => T;

/** The fields of an object: all required ones, some optional ones, no other. */
export class Fields {
  readonly raw: Bytes;
  readonly #fields: ReadonlyMap<string, Node>;
  readonly #name: string;

  constructor(node: Node, name: string, required: readonly string[], optional: readonly string[] = []) {
    if (node.kind !== "object") throw invalidTask(`${name} is an object`);
    const missing = required.find((field) => !node.fields.has(field));
    if (missing !== undefined) throw invalidTask(`${name}: ${missing} is missing`);
    for (const field of node.fields.keys()) {
      if (!required.includes(field) && !optional.includes(field)) throw invalidTask(`${name}: a field is unknown`);
    }
    this.raw = node.raw;
    this.#fields = node.fields;
    this.#name = name;
  }

  get<T>(field: string, read: Read<T>): T {
    const node = this.#fields.get(field);
    if (node === undefined) throw invalidTask(`${this.#name}: ${field} is missing`);
    return read(node, `${this.#name}.${field}`);
  }

  has(field: string): boolean {
    return this.#fields.has(field);
  }
}

export function integer(low: number, high: number): Read<number> {
  return (node, name) => {
    if (node.kind !== "integer" || node.value < low || node.value > high) {
      throw invalidTask(`${name} is an integer from ${low} to ${high}`);
    }
    return node.value;
  };
}

export function float(isWithin: (value: number) => boolean): Read<number> {
  return (node, name) => {
    if (node.kind !== "float" || !isWithin(node.value)) throw invalidTask(`${name} is out of its range`);
    return node.value;
  };
}

export function text(least: number, most: number, pattern?: RegExp): Read<string> {
  return (node, name) => {
    if (node.kind !== "string") throw invalidTask(`${name} is a text`);
    const length = [...node.text].length;
    if (length < least || length > most || (pattern !== undefined && !pattern.test(node.text))) {
      throw invalidTask(`${name} is a text of another form`);
    }
    return node.text;
  };
}

export function oneOf<T extends string>(...words: readonly T[]): Read<T> {
  return (node, name) => {
    const word = node.kind === "string" ? words.find((one) => one === node.text) : undefined;
    if (word === undefined) throw invalidTask(`${name} is one of ${words.join(", ")}`);
    return word;
  };
}

export function bytes(least: number, most: number): Read<Bytes> {
  return (node, name) => {
    const read = node.kind === "string" ? fromHex(node.text) : undefined;
    if (read === undefined || read.length < least || read.length > most) {
      throw invalidTask(`${name} is ${least === most ? least : `${least} to ${most}`} bytes in hexadecimal`);
    }
    return read;
  };
}

export const boolean: Read<boolean> = (node, name) => {
  if (node.kind !== "boolean") throw invalidTask(`${name} is true or false`);
  return node.value;
};

export function nullable<T>(read: Read<T>): Read<T | null> {
  return (node, name) => (node.kind === "null" ? null : read(node, name));
}

export function list<T>(least: number, most: number, read: Read<T>): Read<T[]> {
  return (node, name) => {
    if (node.kind !== "array" || node.items.length < least || node.items.length > most) {
      throw invalidTask(`${name} is a list of ${least === most ? least : `${least} to ${most}`}`);
    }
    return node.items.map((item, at) => read(item, `${name}.${at}`));
  };
}

export function pair<T>(read: Read<T>): Read<readonly [T, T]> {
  const both = list(2, 2, read);
  return (node, name) => both(node, name) as [T, T];
}

/** Throws InvalidTask unless the rule holds. */
export function must(holds: boolean, rule: string): void {
  if (!holds) throw invalidTask(rule);
}
