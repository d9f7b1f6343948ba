// The browser's half of a proof of form: maskedlark/reports/{proof_shape,proof_polynomials,proofs,share_seed}.py;
// the argument is in docs/explanation/proofs.md.

import { ascii, type Bytes, concat, digest } from "./bytes.ts";
import { ELEMENT_BYTES, inverse, MODULUS, randomVector, reduced, subtract, toBytes } from "./field.ts";
import { type Measurement, type Value } from "./measurement.ts";
import { keyStream, type Randomness, replayed, words } from "./randomness.ts";

const POINTS = 3;
const MAX_POLYNOMIAL_BITS = 64;
const EXTRA_NODES = 2 * POINTS - 1;
const SEED_BYTES = 32;
const BLIND_BYTES = 32;

/** What a proof belongs to: the task, the report, and what both helpers read alike. */
export interface Binding {
  readonly taskId: Bytes;
  readonly reportId: Bytes;
  readonly view: Bytes;
}

interface Polynomial {
  readonly bits: number;
  readonly weights: readonly bigint[];
  readonly extension: readonly (readonly bigint[])[];
  readonly inverseZ: readonly bigint[];
}

/** What the reports of a task prove; made once a task, since the tables of its polynomials take a while. */
export class Prover {
  readonly #values: readonly Value[];
  readonly #weights: readonly (readonly number[])[];
  readonly #polynomials: readonly Polynomial[];

  constructor(measurement: Measurement | null) {
    this.#values = measurement?.values ?? [];
    this.#weights = this.#values.map((value) => bitWeights(value.high - value.low));
    this.#polynomials = packed(this.#weights.map((weights) => weights.length)).map(rangeTables);
  }

  /**
   * Both roles' plaintexts.
   *
   * @param mask A 1 at the real candidate.
   * @param columns What a real report shares of its measurement; not looked at in a fake one.
   */
  async plaintexts(
    binding: Binding,
    mask: readonly bigint[],
    columns: readonly number[],
    randomness: Randomness,
  ): Promise<readonly [Bytes, Bytes]> {
    const isReal = mask.includes(1n);
    const { vectors, bits } = this.#secrets(mask, isReal ? columns : undefined);
    const count = isReal ? 1n : 0n;

    const rho = randomVector(POINTS * vectors.length, randomness);
    const functions: bigint[][] = [];
    const blinds: bigint[] = [];
    let start = 0;
    for (const polynomial of this.#polynomials) {
      const phi = randomVector(POINTS, randomness);
      const values = [...bits.slice(start, start + polynomial.bits).map((bit) => reduced(2n * bit - count)), ...phi];
      functions.push(values);
      blinds.push(...phi, ...quotient(polynomial, values, count));
      start += polynomial.bits;
    }
    const secret = [...vectors.flat(), ...bits, ...rho, ...rho.map((one) => (one * one) % MODULUS), ...blinds];
    return this.#proven(binding, secret, { vectors, rho, functions }, randomness);
  }

  #secrets(mask: readonly bigint[], columns: readonly number[] | undefined): { vectors: bigint[][]; bits: bigint[] } {
    const vectors = [[...mask]];
    const bits: bigint[] = [];
    let at = 1; // the count stands first
    this.#values.forEach((value, number) => {
      const weights = this.#weights[number]!;
      const buckets = value.bucketStarts.map((_, bucket) => BigInt(columns?.[at + 1 + bucket] ?? 0));
      if (buckets.length > 0) vectors.push(buckets);
      bits.push(...(columns === undefined ? weights.map(() => 0n) : bitsOf(columns[at]! - value.low, weights)));
      at += 1 + buckets.length;
    });
    return { vectors, bits };
  }

  async #proven(
    binding: Binding,
    secret: readonly bigint[],
    known: { vectors: readonly bigint[][]; rho: readonly bigint[]; functions: readonly bigint[][] },
    randomness: Randomness,
  ): Promise<readonly [Bytes, Bytes]> {
    const seed = randomness(SEED_BYTES);
    const share0 = await expandShare(seed, binding, 0, secret.length);
    const share1 = toBytes(subtract(secret, share0));
    const highest = BigInt(Math.max(0, ...this.#polynomials.map((one) => one.bits)));
    for (;;) {
      const blinds = [randomness(BLIND_BYTES), randomness(BLIND_BYTES)] as const;
      const commitments = [
        await commitment(binding, 0, blinds[0], toBytes(share0)),
        await commitment(binding, 1, blinds[1], share1),
      ] as const;
      const challenge = await digest("proof points", ...commitments);
      const points = [...words(challenge.slice(0, 8 * POINTS))].map((word) => word % MODULUS);
      if (new Set(points).size < POINTS || points.some((point) => point >= 1n && point <= highest)) continue;

      const openings = known.vectors.flatMap((vector, number) =>
        points.map((point, j) => (powerSum(vector, point) + known.rho[POINTS * number + j]!) % MODULUS),
      );
      this.#polynomials.forEach((polynomial, number) => {
        openings.push(...points.map((point) => evaluated(known.functions[number]!, polynomial.weights, point)));
      });
      const shown = concat(binding.view, toBytes(openings));
      return [
        concat(shown, commitments[1], blinds[0], seed),
        concat(shown, commitments[0], blinds[1], share1),
      ];
    }
  }
}

/** The field elements that a seed stands for. */
export async function expandShare(seed: Bytes, binding: Binding, role: number, length: number): Promise<bigint[]> {
  const info = concat(
    ascii("maskedlark/v1 share\0"),
    binding.taskId,
    binding.reportId,
    Uint8Array.of(role, 1), // HKDF-Expand's one block ends with its number
  );
  const hmac = await crypto.subtle.importKey("raw", seed, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const key = new Uint8Array(await crypto.subtle.sign("HMAC", hmac, info));
  for (let spare = 0; ; spare += 16) {
    const stream = replayed(await keyStream(key, ELEMENT_BYTES * (length + spare)));
    try {
      return randomVector(length, stream);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error; // a word was skipped: read on
    }
  }
}

async function commitment(binding: Binding, role: number, blind: Bytes, share: Bytes): Promise<Bytes> {
  return digest("proof part", binding.taskId, binding.reportId, Uint8Array.of(role), blind, binding.view, share);
}

/** Powers of two, and what is left to `size`, so that all weights add up to it. */
function bitWeights(size: number): number[] {
  const bits = size.toString(2).length;
  return [...Array.from({ length: bits - 1 }, (_, place) => 2 ** place), size - 2 ** (bits - 1) + 1];
}

function bitsOf(value: number, weights: readonly number[]): bigint[] {
  const places = weights.length - 1;
  const isLast = value >= 2 ** places;
  const rest = BigInt(isLast ? value - weights.at(-1)! : value);
  return [...Array.from({ length: places }, (_, place) => (rest >> BigInt(place)) & 1n), isLast ? 1n : 0n];
}

/** How many bits each polynomial holds: values in their order, as long as they fit into one. */
function packed(bits: readonly number[]): number[] {
  const polynomials: number[] = [];
  for (const count of bits) {
    const last = polynomials.at(-1);
    if (last !== undefined && last + count <= MAX_POLYNOMIAL_BITS) polynomials[polynomials.length - 1] = last + count;
    else polynomials.push(count);
  }
  return polynomials;
}

function rangeTables(bits: number): Polynomial {
  const known = bits + POINTS;
  const nodes = Array.from({ length: known }, (_, at) => BigInt(at + 1));
  const weights = nodes.map((node) => inverse(product(nodes.filter((other) => other !== node).map((other) => node - other))));
  const further = Array.from({ length: bits + EXTRA_NODES - POINTS }, (_, at) => BigInt(known + 1 + at));
  const extension = further.map((at) => {
    const whole = product(nodes.map((node) => at - node));
    return nodes.map((node, k) => (((whole * weights[k]!) % MODULUS) * inverse(at - node)) % MODULUS);
  });
  const inverseZ = Array.from({ length: bits + EXTRA_NODES }, (_, k) => BigInt(bits + 1 + k)).map((at) =>
    inverse(product(nodes.slice(0, bits).map((node) => at - node))),
  );
  return { bits, weights, extension, inverseZ };
}

/** H = (f^2 - n) / Z behind the bits' nodes. */
function quotient(polynomial: Polynomial, values: readonly bigint[], count: bigint): bigint[] {
  const further = polynomial.extension.map(
    (row) => row.reduce((sum, factor, k) => sum + factor * values[k]!, 0n) % MODULUS,
  );
  return [...values.slice(polynomial.bits), ...further].map((at, k) =>
    reduced((at * at - count) * polynomial.inverseZ[k]!),
  );
}

/** The polynomial with these values at 1, 2, ... at a point. */
function evaluated(values: readonly bigint[], weights: readonly bigint[], point: bigint): bigint {
  const before = [1n];
  for (let node = 1; node < values.length; node++) before.push(reduced(before[node - 1]! * (point - BigInt(node))));
  let after = 1n;
  let sum = 0n;
  for (let at = values.length - 1; at >= 0; at--) {
    sum += ((((values[at]! * weights[at]!) % MODULUS) * before[at]!) % MODULUS) * after;
    after = reduced(after * (point - BigInt(at + 1)));
  }
  return sum % MODULUS;
}

/** The sum of vector[c - 1] point^c: powers from 1. */
function powerSum(vector: readonly bigint[], point: bigint): bigint {
  return vector.reduceRight((sum, entry) => ((sum + entry) * point) % MODULUS, 0n);
}

function product(factors: readonly bigint[]): bigint {
  return factors.reduce((result, factor) => reduced(result * factor), 1n);
}
