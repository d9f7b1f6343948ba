// What a page and the vault say to each other, over a port that the page's stub made.

import type { Cell, Row } from "../core/encoder.ts";
import type { Kind } from "../core/errors.ts";

export interface OpenOptions {
  /** Where the task host serves the bundle. */
  readonly bundle: string;
  /** The helpers' long-term keys, in hexadecimal: reports are sealed to no others. */
  readonly trustedHelpers: readonly string[];
  /** Whether the person agreed. Without it, or with false, what this page's origin has kept is erased; so it is under Global Privacy Control, of all origins. */
  readonly consent: boolean;
  /** Reports wait for a uniform time up to this many seconds, or up to the vault's own least if that is longer; a day by default. */
  readonly maxDelayS?: number;
  /** The most reports of this origin and task in so many days; no such cap by default. A task that protects persons has one of its own, too. */
  readonly cap?: { readonly reports: number; readonly days: number } | null;
  /** A public table of rows, from which fake reports draw each column on its own. */
  readonly population?: readonly { readonly features: Uint8Array; readonly keys: readonly number[] }[];
}

export interface ImpressionOptions {
  /** The bytes that the task takes; or a row, of which the task's own encoder makes them. */
  readonly features?: Uint8Array;
  /** Raw cells by column (an image as its pixels' bytes), where the task names an encoder. They are encoded at once and not kept. */
  readonly row?: Row;
  readonly measured?: { readonly keys: readonly number[]; readonly values: readonly number[] };
  /** What a conversion must name to match; 0 if not given. */
  readonly matchValue?: number;
  /** How long a conversion may follow. The report is made after that time, with or without a conversion. */
  readonly lifetimeDays: number;
  /** The origins, besides this page's own, whose conversions may match. */
  readonly conversionOrigins?: readonly string[];
  /** Of several matching impressions the highest counts, then the latest; 0 if not given. */
  readonly priority?: number;
}

export interface ConversionOptions {
  /** The label's number; or its text, as the task's encoder reads it. */
  readonly label: Cell;
  /** The measured values of the conversion, in the place of the impression's. */
  readonly values?: readonly number[];
  readonly matchValues: readonly number[];
  readonly lookbackDays: number;
  /** The origins, besides this page's own, whose impressions may match. */
  readonly impressionOrigins?: readonly string[];
}

/** What the stub sends. The vault believes none of it: it reads `unknown`. */
export interface Request {
  readonly id: number;
  readonly call: string;
  readonly task?: string;
  readonly options?: unknown;
}

export type Reply =
  | { readonly id: number; readonly result: string | null }
  | { readonly id: number; readonly error: { readonly kind: Kind; readonly message: string } };
