// Random bytes are an argument of every step, so that a step can be replayed from a key stream.
// The browser passes `systemRandomness`; only tests pass anything else.

import { type Bytes } from "./bytes.ts";

export type Randomness = (count: number) => Bytes;

const MOST_AT_ONCE = 65_536; // what getRandomValues gives in one call

export const systemRandomness: Randomness = (count) => {
  const bytes = new Uint8Array(count);
  for (let at = 0; at < count; at += MOST_AT_ONCE) {
    crypto.getRandomValues(bytes.subarray(at, at + MOST_AT_ONCE));
  }
  return bytes;
};

/** AES-256-CTR under a zero counter block: the first `length` bytes of the stream of a 32-byte key. */
export async function keyStream(key: Bytes, length: number): Promise<Bytes> {
  const aes = await crypto.subtle.importKey("raw", key, "AES-CTR", false, ["encrypt"]);
  const parameters = { name: "AES-CTR", counter: new Uint8Array(16), length: 128 };
  return new Uint8Array(await crypto.subtle.encrypt(parameters, aes, new Uint8Array(length)));
}

/** Reads a prepared stream from its beginning, and refuses to read past its end. */
export function replayed(stream: Bytes): Randomness {
  let at = 0;
  return (count) => {
    if (at + count > stream.length) throw new RangeError("the prepared stream is at its end");
    at += count;
    return stream.slice(at - count, at);
  };
}

/** 64-bit little-endian words. */
export function words(bytes: Bytes): BigUint64Array<ArrayBuffer> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return BigUint64Array.from({ length: bytes.length / 8 }, (_, at) => view.getBigUint64(8 * at, true));
}

/** A uniform integer in [0, bound), bound at most 2^53, by rejection. */
export function below(bound: number, randomness: Randomness): number {
  const mask = (1n << BigInt((bound - 1).toString(2).length)) - 1n;
  const bits = bound === 1 ? 0n : mask;
  for (;;) {
    const drawn = words(randomness(8))[0]! & bits;
    if (drawn < BigInt(bound)) return Number(drawn);
  }
}

/** Fisher and Yates, in place. */
export function shuffle<T>(items: T[], randomness: Randomness): void {
  for (let last = items.length - 1; last > 0; last--) {
    const chosen = below(last + 1, randomness);
    [items[last], items[chosen]] = [items[chosen]!, items[last]!];
  }
}

/** A uniform multiple of 2^-53 in [0, 1). */
export function uniform(randomness: Randomness): number {
  return Number(words(randomness(8))[0]! >> 11n) * 2 ** -53;
}
