// The vault's requests: a task's bundle, its encoder, and one report. None carries a cookie or a referrer.

import { type Bytes, concat, digest, equal } from "../core/bytes.ts";
import { MAX_BYTES, MAX_ENCODER_BYTES } from "../core/canonical.ts";
import { MaskedLarkError } from "../core/errors.ts";

const TIMEOUT_MS = 30_000;
const LONGEST_HINT_S = 3_600;
const AGAIN = new Set([408, 425, 429]);
const PRIVATE = { credentials: "omit", referrerPolicy: "no-referrer", mode: "cors", redirect: "error" } as const;

export type Answer =
  | { readonly kind: "stored" } // now, or before
  | { readonly kind: "rejected" } // for good: the same bytes would be refused again
  | { readonly kind: "later"; readonly afterS?: number };

export type Send = (url: string, report: Bytes) => Promise<Answer>;

/** One report, as a request that needs no preflight: no header but what every form may send. */
export const upload: Send = async (url, report) => {
  let response: Response;
  try {
    response = await fetch(url, {
      ...PRIVATE,
      method: "POST",
      body: report.buffer.slice(report.byteOffset, report.byteOffset + report.byteLength),
      cache: "no-store",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    await response.arrayBuffer();
  } catch {
    return { kind: "later" };
  }
  if (response.ok) return { kind: "stored" };
  if (response.status < 500 && !AGAIN.has(response.status)) return { kind: "rejected" };
  const hint = Number(response.headers.get("retry-after") ?? "");
  return hint > 0 ? { kind: "later", afterS: Math.min(hint, LONGEST_HINT_S) } : { kind: "later" };
};

/** A task's bundle as raw bytes, or that it is the one with this ETag. */
export async function fetchBundle(
  url: string,
  etag: string | null,
): Promise<"unchanged" | { readonly encoded: Bytes; readonly etag: string | null }> {
  let response: Response;
  let encoded: Bytes | undefined;
  try {
    // The browser's own cache keeps the ETag and sends it, which needs no preflight. A task that is opened is fetched
    // whole: how long that takes tells a page nothing of other pages that have opened it.
    const cache = etag === null ? "no-store" : "no-cache";
    response = await fetch(url, { ...PRIVATE, cache, signal: AbortSignal.timeout(TIMEOUT_MS) });
    encoded = await body(response, MAX_BYTES);
  } catch {
    throw new MaskedLarkError("Unavailable", "the task host does not answer");
  }
  if (!response.ok) throw new MaskedLarkError("Unavailable", `the task host answers ${response.status}`);
  if (encoded === undefined) throw new MaskedLarkError("InvalidTask", `a bundle has at most ${MAX_BYTES} bytes`);
  const now = response.headers.get("etag");
  return etag !== null && now === etag ? "unchanged" : { encoded, etag: now };
}

/** The encoder that a task names, from beside its bundle; null where the host does not serve it now. */
export async function fetchEncoder(bundle: string, named: Bytes): Promise<Bytes | null> {
  let encoded: Bytes | undefined;
  try {
    const url = `${bundle.replace(/\/+$/, "")}/encoder`;
    const response = await fetch(url, { ...PRIVATE, signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!response.ok) return null;
    encoded = await body(response, MAX_ENCODER_BYTES);
  } catch {
    return null;
  }
  if (encoded === undefined || !equal(await digest("encoder", encoded), named)) {
    throw new MaskedLarkError("InvalidTask", "the task host serves another encoder than the task names");
  }
  return encoded;
}

/** A body of at most so many bytes; undefined as soon as it is longer, for a host may send without end. */
async function body(response: Response, most: number): Promise<Bytes | undefined> {
  const parts: Uint8Array[] = [];
  let length = 0;
  const reader = response.body?.getReader();
  for (;;) {
    const part = await reader?.read();
    if (part === undefined || part.done) return concat(...parts);
    length += part.value.length;
    if (length > most) {
      await reader?.cancel();
      return undefined;
    }
    parts.push(part.value);
  }
}
