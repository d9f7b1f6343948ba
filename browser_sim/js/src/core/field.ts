// The field of 2^64 - 2^32 + 1 elements: maskedlark/numbers/field.py. Elements are bigint, below the modulus.

import { type Bytes } from "./bytes.ts";
import { type Randomness, words } from "./randomness.ts";

export const MODULUS = (1n << 64n) - (1n << 32n) + 1n;
export const ELEMENT_BYTES = 8;

export function reduced(value: bigint): bigint {
  const rest = value % MODULUS;
  return rest < 0n ? rest + MODULUS : rest;
}

export function inverse(value: bigint): bigint {
  let result = 1n;
  let base = reduced(value);
  for (let exponent = MODULUS - 2n; exponent > 0n; exponent >>= 1n) {
    if (exponent & 1n) result = (result * base) % MODULUS;
    base = (base * base) % MODULUS;
  }
  return result;
}

/** Uniform elements: 8 bytes each, words at or above the modulus skipped. */
export function randomVector(count: number, randomness: Randomness): bigint[] {
  const kept: bigint[] = [];
  while (kept.length < count) {
    for (const word of words(randomness(ELEMENT_BYTES * (count - kept.length)))) {
      if (word < MODULUS) kept.push(word);
    }
  }
  return kept;
}

export function subtract(left: readonly bigint[], right: readonly bigint[]): bigint[] {
  return left.map((value, at) => reduced(value - right[at]!));
}

export function toBytes(vector: readonly bigint[]): Bytes {
  const bytes = new Uint8Array(ELEMENT_BYTES * vector.length);
  const view = new DataView(bytes.buffer);
  vector.forEach((element, at) => {
    view.setBigUint64(ELEMENT_BYTES * at, element, true);
  });
  return bytes;
}
