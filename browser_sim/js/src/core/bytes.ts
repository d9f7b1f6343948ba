// Bytes, and the two digests of the protocol: maskedlark/canonical.py in Python.

export type Bytes = Uint8Array<ArrayBuffer>;

const ENCODER = new TextEncoder();

export function ascii(text: string): Bytes {
  return ENCODER.encode(text);
}

export function concat(...parts: readonly Uint8Array[]): Bytes {
  const joined = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}

export function equal(left: Uint8Array, right: Uint8Array): boolean {
  return left.length === right.length && left.every((byte, at) => byte === right[at]);
}

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Lower-case hex only; undefined for anything else. */
export function fromHex(text: string): Bytes | undefined {
  if (text.length % 2 !== 0 || !/^[0-9a-f]*$/.test(text)) return undefined;
  return Uint8Array.from({ length: text.length / 2 }, (_, at) => Number.parseInt(text.slice(2 * at, 2 * at + 2), 16));
}

export function littleEndian(value: number | bigint, length: number): Bytes {
  const bytes = new Uint8Array(length);
  let rest = BigInt(value);
  for (let at = 0; at < length; at++) {
    bytes[at] = Number(rest & 0xffn);
    rest >>= 8n;
  }
  return bytes;
}

export async function sha256(bytes: Bytes): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

/** SHA-256 of a purpose and byte strings, each behind its length, so that no two lists collide. */
export async function digest(purpose: string, ...parts: readonly Uint8Array[]): Promise<Bytes> {
  const framed = parts.flatMap((part) => [littleEndian(part.length, 8), part]);
  return sha256(concat(ascii(`maskedlark/v1 ${purpose}`), ...framed));
}
