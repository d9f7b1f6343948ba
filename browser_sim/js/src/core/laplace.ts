// Exact discrete Laplace noise by rejection from strips: maskedlark/privacy/{strips,samplers}.py, which say why it is exact.
// The values are a function of the scale and the random bytes alone, the same as in Python.

import { type Bytes } from "./bytes.ts";
import { expNegative } from "./exponential.ts";
import { type Randomness, words } from "./randomness.ts";

const COLUMNS = 256;
const TAIL = COLUMNS - 1;
const WEIGHT_BITS = 32n;
const COIN_SIZE = 2 ** 24;
const SURE_BITS = 31n;
const COIN_LENGTH = 47; // bits of a coin before it is decided exactly
const BATCH = 1 << 15;
const DOUBT = 2 ** -30;
const DEEPEST = 64;
const FINE = 256n; // bits behind the point of the curve
const RELATIVE = 160n; // bits of an exact comparison

const FEATURE_RANGE = 255;
const FEATURE_FRAC_BITS = 16;

interface Strips {
  readonly scale: number;
  readonly shift: number;
  readonly factor: number;
  readonly weights: readonly number[];
  readonly sure: readonly number[];
  readonly coins: readonly number[];
  readonly others: readonly number[];
}

interface Proposal {
  readonly x: number;
  readonly isKept: boolean;
}

const KNOWN = new Map<number, Strips>();

/** Features, each byte plus Laplace noise of scale 255 / epsilon, rounded and clipped to 0..255. */
export function noisedBytes(features: Uint8Array, epsilon: number, randomness: Randomness): Bytes {
  const noise = discreteLaplace(featureScale(epsilon), features.length, randomness);
  const unit = 2 ** FEATURE_FRAC_BITS;
  return Uint8Array.from(features, (byte, at) =>
    Math.min(Math.max(byte + Math.floor((noise[at]! + unit / 2) / unit), 0), FEATURE_RANGE),
  );
}

/** The scale in units of 2^-16, rounded up. */
export function featureScale(epsilon: number): number {
  let denominator = 1n;
  let scaled = epsilon;
  while (!Number.isInteger(scaled)) {
    scaled *= 2;
    denominator *= 2n;
  }
  const range = BigInt(FEATURE_RANGE) << BigInt(FEATURE_FRAC_BITS);
  const exact = BigInt(scaled);
  return Number((range * denominator + exact - 1n) / exact);
}

/** Independent integers x with a probability proportional to exp(-|x| / scale), for scales up to 2^48. */
export function discreteLaplace(scale: number, count: number, randomness: Randomness): number[] {
  if (!(scale >= 1 && scale <= 2 ** 48)) throw new RangeError("the scale is out of the sampler's range");
  const strips = KNOWN.get(scale) ?? makeStrips(scale);
  KNOWN.set(scale, strips);
  const drawn: number[] = [];
  while (drawn.length < count) {
    const missing = count - drawn.length;
    const kept = batch(strips, Math.min(BATCH, missing + Math.floor(missing / 8) + 16), randomness);
    drawn.push(...kept.slice(0, missing));
  }
  return drawn;
}

function makeStrips(scale: number): Strips {
  const shift = Math.max(0, BigInt(scale).toString(2).length - 4);
  const step = expNegative(1n << BigInt(shift), BigInt(scale), FINE);
  const curve = [1n << FINE];
  for (let k = 0; k < TAIL; k++) curve.push((curve[k]! * step) >> FINE);
  const area = curve.slice(0, TAIL).reduce((sum, height) => sum + height, 0n);
  const all = 1n << WEIGHT_BITS;
  const tail = ((curve[TAIL]! * all) >> FINE) + 1n;
  const factor = ((all - tail - BigInt(COLUMNS)) << FINE) / area;
  const weights = [...curve.slice(0, TAIL).map((height) => ((factor * height) >> FINE) + 1n), tail];
  weights[0]! += all - weights.reduce((sum, weight) => sum + weight, 0n);
  const sure = curve.slice(1).map((after, k) => ((factor * after) << SURE_BITS) / (weights[k]! << FINE));
  return {
    scale,
    shift,
    factor: Number(factor),
    weights: weights.map(Number),
    sure: [...sure.map(Number), 0],
    ...columns(weights.map(Number)),
  };
}

/** 256 columns of 2^24 that hold at most two strips each, and every strip as often as its weight says. */
function columns(weights: readonly number[]): Pick<Strips, "coins" | "others"> {
  const left = [...weights];
  const coins = left.map(() => COIN_SIZE);
  const others = left.map((_, k) => k);
  const small = others.filter((k) => left[k]! < COIN_SIZE);
  const large = others.filter((k) => left[k]! >= COIN_SIZE);
  for (let column = small.pop(); column !== undefined; column = small.pop()) {
    const giver = large.at(-1)!;
    coins[column] = left[column]!;
    others[column] = giver;
    left[giver]! -= COIN_SIZE - left[column]!;
    if (left[giver]! < COIN_SIZE) small.push(large.pop()!);
  }
  return { coins, others };
}

/** Those of some proposals that are kept, from two words of random bits for each. */
function batch(strips: Strips, proposals: number, randomness: Randomness): number[] {
  const bytes = randomness(16 * proposals);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const kept: number[] = [];
  for (let at = 0; at < proposals; at++) {
    const first = view.getUint32(8 * at, true);
    const signAndCoin = view.getUint32(8 * at + 4, true);
    const low = view.getUint32(8 * (proposals + at), true);
    const high = view.getUint32(8 * (proposals + at) + 4, true);
    const strip = stripOf(strips, first);
    const place = placeIn(strips, low, high);
    const coin = signAndCoin >>> 1;
    const proposed: Proposal =
      coin < strips.sure[strip]!
        ? { x: strip * 2 ** strips.shift + place, isKept: true }
        : weighed(strips, strip, place, coin * 2 ** 16 + (high >>> 16), randomness);
    const isNegative = (signAndCoin & 1) === 1;
    if (proposed.isKept && !(proposed.x === 0 && isNegative)) kept.push(isNegative ? -proposed.x : proposed.x);
  }
  return kept;
}

function stripOf(strips: Strips, word: number): number {
  const column = word & 0xff;
  return word >>> 8 < strips.coins[column]! ? column : strips.others[column]!;
}

/** The place in a strip: the lowest `shift` bits, at most 45, of a word given in halves. */
function placeIn(strips: Strips, low: number, high: number): number {
  if (strips.shift <= 32) return low % 2 ** strips.shift;
  return (high % 2 ** (strips.shift - 32)) * 2 ** 32 + low;
}

/** A coin of 47 bits against the curve in floats, and exactly where floats do not decide. */
function weighed(strips: Strips, strip: number, place: number, coin: number, randomness: Randomness): Proposal {
  const x = strip * 2 ** strips.shift + place;
  if (strip !== TAIL) {
    const bound = Math.exp(-Math.min(x / strips.scale, DEEPEST)) * strips.factor * 2 ** COIN_LENGTH;
    const weight = strips.weights[strip]!;
    if (weight * (coin + 1) <= bound * (1 - DOUBT)) return { x, isKept: true };
    if (weight * coin >= bound * (1 + DOUBT)) return { x, isKept: false };
  }
  return exactly(strips, strip, x, coin, randomness);
}

function exactly(strips: Strips, from: number, proposed: number, start: number, randomness: Randomness): Proposal {
  let [strip, x, coin, bits] = [from, proposed, BigInt(start), BigInt(COIN_LENGTH)];
  let weight = BigInt(strips.weights[strip]!);
  let behind = 0;
  while (strip === TAIL) {
    behind += TAIL * 2 ** strips.shift;
    const view = new DataView(randomness(16).buffer);
    strip = stripOf(strips, view.getUint32(0, true));
    x = behind + strip * 2 ** strips.shift + placeIn(strips, view.getUint32(8, true), view.getUint32(12, true));
    weight *= BigInt(strips.weights[strip]!);
    bits += WEIGHT_BITS;
  }
  for (;;) {
    // The curve at x, with RELATIVE bits that count however far down it is.
    const fine = RELATIVE + bits + 2n * (BigInt(x) / BigInt(strips.scale) + 1n);
    const curve = expNegative(BigInt(x), BigInt(strips.scale), fine);
    const bound = BigInt(strips.factor) * curve; // in units of 2^-(fine - bits)
    const error = BigInt(strips.factor) << 16n;
    const unit = fine - bits;
    if ((weight * (coin + 1n)) << unit <= bound - error) return { x, isKept: true };
    if ((weight * coin) << unit >= bound + error) return { x, isKept: false };
    coin = (coin << 64n) | words(randomness(8))[0]!;
    bits += 64n;
  }
}
