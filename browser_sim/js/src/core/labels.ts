// Labels: the label space, quantisation in exact rationals, decoys. maskedlark/reports/{task,report}.py

import { invalidExample } from "./errors.ts";
import { below, type Randomness, shuffle } from "./randomness.ts";
import { Fields, integer, must, nullable, oneOf, type Read } from "./shape.ts";

export interface LabelSpace {
  readonly kind: "classes" | "values";
  readonly size: number;
  readonly numBuckets: number | null;
  readonly defaultLabel: number | null;
  /** Every label that a report can hold, ascending. */
  readonly reachable: readonly number[];
}

export interface Candidates {
  readonly labels: readonly number[];
  /** 1 at the real one. */
  readonly mask: readonly bigint[];
}

export const readLabels: Read<LabelSpace> = (node, name) => {
  const fields = new Fields(node, name, ["default_label", "kind", "num_buckets", "size"]);
  const kind = fields.get("kind", oneOf("classes", "values"));
  const size = fields.get("size", integer(2, 2 ** 20));
  const numBuckets = fields.get("num_buckets", nullable(integer(1, 65_536)));
  const defaultLabel = fields.get("default_label", nullable(integer(0, Number.MAX_SAFE_INTEGER)));
  must((kind === "values") === (numBuckets !== null), "num_buckets goes with labels of kind values, and only with them");
  must(numBuckets === null || numBuckets <= size - 1, "num_buckets is at most the largest value");
  const reachable =
    numBuckets === null ? Array.from({ length: size }, (_, label) => label) : nextToBoundaries(size, numBuckets);
  must(defaultLabel === null || reachable.includes(defaultLabel), "default_label is a label of the space");
  return { kind, size, numBuckets, defaultLabel, reachable };
};

/** The candidate labels of a report in random order; a label of null makes a fake report. */
export function candidates(
  labels: LabelSpace,
  count: number,
  label: number | null,
  randomness: Randomness,
): Candidates {
  const real = label === null ? null : integerLabel(labels, label, randomness);
  const chosen = real === null ? [] : [real];
  const preset = labels.defaultLabel;
  if (preset !== null && preset !== real) chosen.push(preset);
  const others = labels.reachable.filter((other) => !chosen.includes(other));
  const missing = count - chosen.length;
  for (let at = 0; at < missing; at++) {
    const pick = at + below(others.length - at, randomness);
    [others[at], others[pick]] = [others[pick]!, others[at]!];
  }
  chosen.push(...others.slice(0, missing));
  shuffle(chosen, randomness);
  return { labels: chosen, mask: chosen.map((one) => (one === real ? 1n : 0n)) };
}

/** Refuse a label that is none of the space. Looks at no randomness, so a page hears of it at once. */
export function checkLabel(labels: LabelSpace, label: number): void {
  if (!(label >= 0 && label <= labels.size - 1 && (labels.kind === "values" || Number.isInteger(label)))) {
    throw invalidExample(`a label lies outside 0..${labels.size - 1}, or is not one of the classes`);
  }
}

function integerLabel(labels: LabelSpace, label: number, randomness: Randomness): number {
  checkLabel(labels, label);
  return labels.numBuckets === null ? label : quantised(label, labels.size, labels.numBuckets, randomness);
}

interface Fraction {
  readonly numerator: bigint;
  readonly denominator: bigint;
}

/** To a neighbouring bucket boundary, then to an integer, each at random, with the value as expectation, exactly. */
function quantised(value: number, size: number, buckets: number, randomness: Randomness): number {
  const exact = fractionOf(value);
  const position = fraction(exact.numerator * BigInt(buckets), exact.denominator * BigInt(size - 1));
  const boundary = roundedAtRandom(position, randomness);
  return Number(roundedAtRandom(fraction(boundary * BigInt(size - 1), BigInt(buckets)), randomness));
}

function nextToBoundaries(size: number, buckets: number): number[] {
  const found = new Set<number>();
  for (let at = 0; at <= buckets; at++) {
    const whole = at * (size - 1); // below 2^37
    const down = (whole - (whole % buckets)) / buckets;
    found.add(down).add(whole % buckets === 0 ? down : down + 1);
  }
  return [...found].sort((left, right) => left - right);
}

/** The exact value of a finite float that is not negative. */
function fractionOf(value: number): Fraction {
  let shift = 0n;
  let scaled = value;
  while (!Number.isInteger(scaled)) {
    scaled *= 2; // exact
    shift += 1n;
  }
  return fraction(BigInt(scaled), 1n << shift);
}

function fraction(numerator: bigint, denominator: bigint): Fraction {
  let left = numerator;
  let right = denominator;
  while (right !== 0n) [left, right] = [right, left % right];
  return { numerator: numerator / left, denominator: denominator / left };
}

/** The floor or the ceiling of a lowest-terms fraction, with expectation exactly the value. */
function roundedAtRandom(value: Fraction, randomness: Randomness): bigint {
  const floor = value.numerator / value.denominator;
  const rest = value.numerator - floor * value.denominator;
  const bits = value.denominator.toString(2).length;
  for (;;) {
    const bytes = randomness(Math.ceil(bits / 8));
    let drawn = 0n;
    for (const byte of bytes.reverse()) drawn = (drawn << 8n) | BigInt(byte);
    drawn &= (1n << BigInt(bits)) - 1n;
    if (drawn < value.denominator) return drawn < rest ? floor + 1n : floor;
  }
}
