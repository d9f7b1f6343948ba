// Canonical JSON, read strictly from its raw bytes: what maskedlark/canonical.py writes and nothing else.
// Signatures cover slices of the bytes as they came: nothing is ever spelled again to be checked.

import { type Bytes } from "./bytes.ts";
import { invalidTask } from "./errors.ts";

export const MAX_BYTES = 64 * 1024;
export const MAX_ENCODER_BYTES = 4 * 1024 * 1024;
const MAX_DEPTH = 16;

export type Node =
  | { readonly kind: "object"; readonly raw: Bytes; readonly fields: ReadonlyMap<string, Node> }
  | { readonly kind: "array"; readonly items: readonly Node[] }
  | { readonly kind: "string"; readonly text: string }
  | { readonly kind: "integer"; readonly value: number }
  | { readonly kind: "float"; readonly value: number }
  | { readonly kind: "boolean"; readonly value: boolean }
  | { readonly kind: "null" };

const ESCAPES: Readonly<Record<string, string>> = {
  '"': '"',
  "\\": "\\",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
};
const SHORT = new Set(Object.values(ESCAPES));

/** The tree of canonical bytes, or InvalidTask; `what` they are is named in errors. */
export function parse(encoded: Bytes, what = "bundle", most = MAX_BYTES): Node {
  if (encoded.length > most) throw invalidTask(`the ${what} has at most ${most} bytes`);
  const reader = new Reader(encoded, what);
  const node = reader.value(0);
  reader.end();
  return node;
}

class Reader {
  readonly #bytes: Bytes;
  readonly #text: string;
  readonly #what: string;
  #at = 0;

  constructor(bytes: Bytes, what: string) {
    this.#bytes = bytes;
    this.#what = what;
    this.#text = new TextDecoder("latin1").decode(bytes); // one character a byte
  }

  value(depth: number): Node {
    if (depth > MAX_DEPTH) throw invalidTask(`the ${this.#what} is nested too deeply`);
    switch (this.#text[this.#at]) {
      case "{":
        return this.#object(depth);
      case "[":
        return this.#array(depth);
      case '"':
        return { kind: "string", text: this.#string() };
      case "t":
        return this.#word("true", { kind: "boolean", value: true });
      case "f":
        return this.#word("false", { kind: "boolean", value: false });
      case "n":
        return this.#word("null", { kind: "null" });
      default:
        return this.#number();
    }
  }

  end(): void {
    if (this.#at !== this.#text.length) throw this.#wrong();
  }

  #wrong(): Error {
    return invalidTask(`the ${this.#what} is not in its canonical spelling`);
  }

  #expect(character: string): void {
    if (this.#text[this.#at] !== character) throw this.#wrong();
    this.#at += 1;
  }

  #word(word: string, node: Node): Node {
    if (!this.#text.startsWith(word, this.#at)) throw this.#wrong();
    this.#at += word.length;
    return node;
  }

  #object(depth: number): Node {
    const start = this.#at;
    const fields = new Map<string, Node>();
    this.#expect("{");
    let last: string | undefined;
    while (this.#text[this.#at] !== "}") {
      if (last !== undefined) this.#expect(",");
      const name = this.#string();
      if (!/^[ -~]*$/.test(name) || (last !== undefined && name <= last)) throw this.#wrong(); // sorted, none twice
      last = name;
      this.#expect(":");
      fields.set(name, this.value(depth + 1));
    }
    this.#expect("}");
    return { kind: "object", raw: this.#bytes.slice(start, this.#at), fields };
  }

  #array(depth: number): Node {
    const items: Node[] = [];
    this.#expect("[");
    while (this.#text[this.#at] !== "]") {
      if (items.length > 0) this.#expect(",");
      items.push(this.value(depth + 1));
    }
    this.#expect("]");
    return { kind: "array", items };
  }

  #string(): string {
    this.#expect('"');
    let text = "";
    for (;;) {
      const character = this.#text[this.#at];
      this.#at += 1;
      if (character === '"') break;
      if (character === undefined || character < " " || character > "~") throw this.#wrong();
      text += character === "\\" ? this.#escaped() : character;
    }
    if (!text.isWellFormed()) throw this.#wrong();
    return text;
  }

  #escaped(): string {
    const letter = this.#text[this.#at] ?? "";
    this.#at += 1;
    const short = ESCAPES[letter];
    if (short !== undefined) return short;
    const digits = this.#text.slice(this.#at, this.#at + 4);
    if (letter !== "u" || !/^[0-9a-f]{4}$/.test(digits)) throw this.#wrong();
    this.#at += 4;
    const character = String.fromCharCode(Number.parseInt(digits, 16));
    if ((character >= " " && character <= "~") || SHORT.has(character)) throw this.#wrong(); // spelled shorter
    return character;
  }

  #number(): Node {
    const token = /-?[0-9][0-9.e+-]*/y;
    token.lastIndex = this.#at;
    const spelled = token.exec(this.#text)?.[0];
    if (spelled === undefined) throw this.#wrong();
    this.#at += spelled.length;
    const value = Number(spelled);
    if (/^(0|-?[1-9][0-9]*)$/.test(spelled)) {
      if (!Number.isSafeInteger(value)) throw invalidTask(`a number of the ${this.#what} is out of its range`);
      return { kind: "integer", value };
    }
    if (!Number.isFinite(value) || spelledAsPython(value) !== spelled) throw this.#wrong();
    return { kind: "float", value };
  }
}

/** A float as Python's repr spells it: the shortest digits, an exponent below 1e-4 and from 1e16 on. */
export function spelledAsPython(value: number): string {
  if (value === 0) return Object.is(value, -0) ? "-0.0" : "0.0";
  const sign = value < 0 ? "-" : "";
  const [mantissa = "", exponent = ""] = Math.abs(value).toExponential().split("e");
  const digits = mantissa.replace(".", "");
  const power = Number(exponent);
  if (power < -4 || power >= 16) {
    const behind = digits.length > 1 ? `.${digits.slice(1)}` : "";
    const size = Math.abs(power).toString().padStart(2, "0");
    return `${sign}${digits[0]}${behind}e${power < 0 ? "-" : "+"}${size}`;
  }
  if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${digits}`;
  const whole = digits.slice(0, power + 1).padEnd(power + 1, "0");
  return `${sign}${whole}.${digits.slice(power + 1) || "0"}`;
}
