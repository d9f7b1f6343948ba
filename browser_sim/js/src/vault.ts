// The vault: a page of one site, in a frame of the pages that report. It alone holds storage, keys and sealing.
//
//   serveVault({ intake, origins, trustedHelpers })

import { fromHex, toHex, type Bytes } from "./core/bytes.ts";
import type { Cell, Encoder } from "./core/encoder.ts";
import { invalidExample, MaskedLarkError } from "./core/errors.ts";
import { Engine } from "./vault/engine.ts";
import type { ConversionOptions, ImpressionOptions, OpenOptions, Reply, Request } from "./vault/messages.ts";
import { fetchBundle, type Send } from "./vault/network.ts";
import { type Conversion, type Impression, Store } from "./vault/store.ts";

export { MaskedLarkError } from "./core/errors.ts";
export { Engine } from "./vault/engine.ts";
export { Store } from "./vault/store.ts";
export type { Answer, Send } from "./vault/network.ts";

const DAY_S = 86_400;
const MOST_DAYS = 366;
const MOST_MATCH_VALUES = 100;
const MOST_ROWS = 10_000;

export interface VaultOptions {
  /** The ad server's intake, such as https://reports.example. */
  readonly intake: string;
  /** The origins whose pages may call. */
  readonly origins: readonly string[];
  /** The helpers that this site trusts; a page's own list can only narrow it. */
  readonly trustedHelpers: readonly string[];
  /** Sends one report in the place of fetch: a relay. */
  readonly send?: Send;
  /** A service worker's script, which goes on sending when all pages are closed. */
  readonly worker?: string;
}

/** Listens to the pages that embed this one, and does what is due. */
export async function serveVault(options: VaultOptions): Promise<Engine> {
  const started = start(options);
  addEventListener("message", (event) => {
    const port = event.ports[0];
    if (event.data !== "maskedlark" || port === undefined || !options.origins.includes(event.origin)) return;
    void started.then((engine) => {
      serve(engine, port, options);
      port.postMessage("ready");
    });
  });
  parent.postMessage("maskedlark", "*"); // to whoever embeds this page: it listens
  return started;
}

async function start(options: VaultOptions): Promise<Engine> {
  if (options.worker !== undefined) {
    await navigator.serviceWorker.register(options.worker, { type: "module" });
  }
  const store = await Store.open(await storage());
  const engine = new Engine({ store, intake: options.intake, ...(options.send && { send: options.send }) });
  void engine.run().catch(() => undefined);
  return engine;
}

/** The vault's own storage even in another site's page, where the browser and the person allow it. */
async function storage(): Promise<IDBFactory> {
  const asking = document as Document & {
    requestStorageAccess?: (types: object) => Promise<{ indexedDB?: IDBFactory } | undefined>;
  };
  if (window === window.top || asking.requestStorageAccess === undefined) return indexedDB;
  try {
    const allowed = await asking.requestStorageAccess({ indexedDB: true });
    return allowed?.indexedDB ?? indexedDB;
  } catch {
    return indexedDB; // storage of this pair of sites alone
  }
}

function serve(engine: Engine, port: MessagePort, options: VaultOptions): void {
  port.onmessage = async ({ data }: MessageEvent<Request>) => {
    let reply: Reply;
    try {
      reply = { id: data.id, result: await answer(engine, data, options) };
    } catch (error) {
      const known = error instanceof MaskedLarkError ? error : new MaskedLarkError("Unavailable", "the vault failed");
      reply = { id: data.id, error: { kind: known.kind, message: known.message } };
    }
    port.postMessage(reply);
    if (data.call !== "open") void engine.run().catch(() => undefined); // after the answer, whatever comes of it
  };
}

async function answer(engine: Engine, request: Request, options: VaultOptions): Promise<string | null> {
  switch (request.call) {
    case "open":
      return opened(engine, request.options, options);
    case "saveImpression":
      if (isUnderPrivacyControl()) return null; // switched on since the page opened the task
      await engine.note({ kind: "impression", at: Date.now() / 1000, impression: await impression(engine, request.task, request.options) });
      return null;
    case "measureConversion":
      if (isUnderPrivacyControl()) return null;
      await engine.note({ kind: "conversion", at: Date.now() / 1000, conversion: await conversion(engine, request.task, request.options) });
      return null;
    case "withdraw":
      await engine.withdraw(request.task);
      return null;
    default:
      throw new MaskedLarkError("Refused", "no such call");
  }
}

function isUnderPrivacyControl(): boolean {
  return (navigator as { globalPrivacyControl?: boolean }).globalPrivacyControl === true;
}

async function opened(engine: Engine, asked: OpenOptions, options: VaultOptions): Promise<string | null> {
  if (!asked.consent || isUnderPrivacyControl()) return null;
  const ours = keys(options.trustedHelpers);
  const trusted = keys(asked.trustedHelpers).filter((key) => ours.some((one) => toHex(one) === toHex(key)));
  const answer = await fetchBundle(asked.bundle, null);
  if (answer === "unchanged") throw new MaskedLarkError("Unavailable", "the task host sent no bundle");
  const population = (asked.population ?? []).slice(0, MOST_ROWS);
  const maxDelayS = number(asked.maxDelayS ?? DAY_S, 0, MOST_DAYS * DAY_S);
  const settings = { maxDelayS, cap: asked.cap ?? null, population };
  const task = await engine.keep(asked.bundle, answer.encoded, answer.etag, { trusted, settings });
  return toHex(task.id);
}

function keys(hexadecimal: readonly string[]): Bytes[] {
  return hexadecimal.map((text) => {
    const key = fromHex(text);
    if (key?.length !== 32) throw new MaskedLarkError("InvalidTask", "a helper's key is 32 bytes in lower-case hexadecimal");
    return key;
  });
}

const encoders = new Map<string, Encoder>();

/** What a task's encoder makes of raw cells; its code is loaded by the first page that gives any. */
async function encoderOf(engine: Engine, task: string): Promise<Encoder> {
  const { encoded, named } = await engine.encoder(task);
  const known = encoders.get(task);
  if (known !== undefined) return known;
  const { openEncoder } = await import("./core/encoder.ts");
  const opened = await openEncoder(encoded, named);
  encoders.set(task, opened);
  return opened;
}

async function features(engine: Engine, task: string, given: ImpressionOptions): Promise<Bytes> {
  if ((given.features === undefined) === (given.row === undefined)) throw invalidExample("give either features or a row");
  if (given.row === undefined) return Uint8Array.from(given.features ?? []);
  return (await encoderOf(engine, task)).features(given.row);
}

async function label(engine: Engine, task: string, given: Cell): Promise<number> {
  return typeof given === "number" ? given : (await encoderOf(engine, task)).label(given);
}

async function impression(engine: Engine, task: string, given: ImpressionOptions): Promise<Impression> {
  const now = Date.now() / 1000;
  return {
    task,
    features: await features(engine, task, given),
    measured: given.measured ?? null,
    matchValue: number(given.matchValue ?? 0, 0, 2 ** 32 - 1),
    priority: number(given.priority ?? 0, -(2 ** 31), 2 ** 31),
    seenAt: now,
    expiresAt: now + number(given.lifetimeDays, 0, MOST_DAYS) * DAY_S,
  };
}

async function conversion(engine: Engine, task: string, given: ConversionOptions): Promise<Conversion> {
  const matchValues = given.matchValues.slice(0, MOST_MATCH_VALUES).map((value) => number(value, 0, 2 ** 32 - 1));
  return {
    task,
    label: await label(engine, task, given.label),
    values: given.values ?? null,
    matchValues,
    since: Date.now() / 1000 - number(given.lookbackDays, 0, MOST_DAYS) * DAY_S,
  };
}

function number(value: number, low: number, high: number): number {
  if (typeof value !== "number" || !(value >= low && value <= high)) {
    throw new MaskedLarkError("InvalidExample", `a number lies outside ${low}..${high}`);
  }
  return value;
}
