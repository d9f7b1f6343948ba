// The vault: a page of one site, in a frame of the pages that report. It alone holds storage, keys and sealing.
//
//   serveVault({ intake, origins, trustedHelpers })

import { type Bytes, toHex } from "./core/bytes.ts";
import type { Cell, Encoder, Row } from "./core/encoder.ts";
import { MaskedLarkError } from "./core/errors.ts";
import { Allowance } from "./vault/allowance.ts";
import { isUnderPrivacyControl } from "./vault/consent.ts";
import { Engine } from "./vault/engine.ts";
import type { Reply, Request } from "./vault/messages.ts";
import type { Send } from "./vault/network.ts";
import { checkVault, readConversion, readImpression, readOpen } from "./vault/options.ts";
import { keyOf, Store } from "./vault/store.ts";

export { MaskedLarkError } from "./core/errors.ts";
export { Engine } from "./vault/engine.ts";
export { Store } from "./vault/store.ts";
export type { Answer, Send } from "./vault/network.ts";

const LEAST_DELAY_S = 3_600;
const HANDSHAKE_COST = 20;
const COSTS: Readonly<Record<string, number>> = { open: 20, withdraw: 0 }; // a person's No is never refused

export interface VaultOptions {
  /** The ad server's intake, such as https://reports.example. */
  readonly intake: string;
  /** The origins whose pages may call. */
  readonly origins: readonly string[];
  /** The helpers that this site trusts; a page's own list can only narrow it. */
  readonly trustedHelpers: readonly string[];
  /** The origins that may open a task, by its id in hexadecimal; all of `origins` may open a task that is not named. */
  readonly tasks?: Readonly<Record<string, readonly string[]>>;
  /** No page gets a shorter `maxDelayS` than this; an hour if not given. */
  readonly leastDelayS?: number;
  /** Sends one report in the place of fetch: a relay. */
  readonly send?: Send;
  /** A service worker's script, which goes on sending when all pages are closed. */
  readonly worker?: string;
}

/** Listen to the pages that embed this one, and do what is due. */
export async function serveVault(options: VaultOptions): Promise<Engine> {
  checkVault(options);
  const started = start(options);
  const allowances = new Map<string, Allowance>();
  addEventListener("message", ({ data, origin, ports: [port] }) => {
    if (data !== "maskedlark" || port === undefined || !options.origins.includes(origin)) return;
    const allowance = allowances.get(origin) ?? new Allowance(performance.now() / 1000);
    allowances.set(origin, allowance);
    if (!allowance.take(HANDSHAKE_COST, performance.now() / 1000)) return;
    void started.then((engine) => {
      serve({ engine, origin, options }, port, (cost) => allowance.take(cost, performance.now() / 1000));
      port.postMessage("ready");
    });
  });
  parent.postMessage("maskedlark", "*"); // to whatever page embeds this one: it listens
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

/** What a port speaks for: the origin that made it, and no other, whatever its messages say. */
interface Caller {
  readonly engine: Engine;
  readonly origin: string;
  readonly options: VaultOptions;
}

/** Answer a port's messages, one after the other. */
function serve(caller: Caller, port: MessagePort, take: (cost: number) => boolean): void {
  let last: Promise<void> = Promise.resolve();
  port.onmessage = ({ data }: MessageEvent<unknown>) => {
    if (!isRequest(data)) return; // no id: there is nothing to answer to
    if (!take(isRefusal(data) ? 0 : (COSTS[data.call] ?? 1))) {
      port.postMessage(failure(data.id, new MaskedLarkError("TooMany", "too many calls: try again in a minute")));
      return;
    }
    last = last.then(async () => {
      const reply = await answer(caller, data).then(
        (result): Reply => ({ id: data.id, result }),
        (error: unknown) => failure(data.id, error),
      );
      port.postMessage(reply);
    });
  };
}

function isRequest(data: unknown): data is Request {
  return typeof data === "object" && data !== null && "id" in data && Number.isSafeInteger(data.id);
}

/** Whether a page opens a task without the person's consent, which erases what its origin has kept. A mistyped one is no No. */
function isRefusal({ call, options }: Request): boolean {
  if (call !== "open") return false;
  const consent = (options as { consent?: unknown } | null | undefined)?.consent;
  return consent === undefined || consent === false;
}

function failure(id: number, error: unknown): Reply {
  const known = error instanceof MaskedLarkError ? error : new MaskedLarkError("Unavailable", "the vault failed");
  return { id, error: { kind: known.kind, message: known.message } };
}

async function answer(caller: Caller, request: Request): Promise<string | null> {
  const { engine, origin } = caller;
  if (isUnderPrivacyControl()) {
    await engine.eraseAll(); // it may have been switched on since the page opened the task
    return null;
  }
  if (isRefusal(request)) {
    await engine.eraseOrigin(origin);
    return null;
  }
  if (request.call === "open") return openTask(caller, request.options);
  if (typeof request.task !== "string" || !/^[0-9a-f]{64}$/.test(request.task)) {
    throw new MaskedLarkError("Refused", "no such task");
  }
  const key = keyOf(request.task, origin);
  switch (request.call) {
    case "saveImpression":
      await saveImpression(engine, key, request.options);
      return null;
    case "measureConversion":
      await measureConversion(caller, key, request.options);
      return null;
    case "withdraw":
      await engine.withdraw(key);
      return null;
    default:
      throw new MaskedLarkError("Refused", "no such call");
  }
}

async function openTask({ engine, origin, options }: Caller, asked: unknown): Promise<string> {
  const given = readOpen(asked);
  const ours = new Set(options.trustedHelpers);
  const task = await engine.open({
    origin,
    url: given.bundle,
    trusted: given.trusted.filter((key) => ours.has(toHex(key))),
    settings: given.settings,
    leastDelayS: leastDelayS(options),
    isAllowed: (id) => options.tasks?.[id]?.includes(origin) ?? true,
  });
  return toHex(task.id);
}

function leastDelayS(options: VaultOptions): number {
  return options.leastDelayS ?? LEAST_DELAY_S;
}

const encoders = new Map<string, Encoder>();

/** What a task's encoder makes of raw cells; its code is loaded by the first page that gives any. */
async function encoderOf(engine: Engine, key: string): Promise<Encoder> {
  const { encoded, named } = await engine.encoder(key);
  const known = encoders.get(key);
  if (known !== undefined) return known;
  const { openEncoder } = await import("./core/encoder.ts");
  const opened = await openEncoder(encoded, named);
  encoders.set(key, opened);
  return opened;
}

async function encoded(engine: Engine, key: string, row: Row): Promise<Bytes> {
  return (await encoderOf(engine, key)).features(row);
}

async function labelOf(engine: Engine, key: string, given: Cell): Promise<number> {
  return typeof given === "number" ? given : (await encoderOf(engine, key)).label(given);
}

async function saveImpression(engine: Engine, key: string, options: unknown): Promise<void> {
  const seenAt = Date.now() / 1000;
  const { features, row, lifetimeS, ...given } = readImpression(options, await engine.task(key));
  await engine.keepImpression({
    ...given,
    task: key,
    features: features ?? (await encoded(engine, key, row!)),
    seenAt,
    due: seenAt + lifetimeS,
    conversion: null,
  });
}

async function measureConversion({ engine, options }: Caller, key: string, asked: unknown): Promise<void> {
  const at = Date.now() / 1000;
  const { label, lookbackS, ...given } = readConversion(asked);
  await engine.keepConversion({
    ...given,
    task: key,
    at,
    due: at + leastDelayS(options),
    label: await labelOf(engine, key, label),
    since: at - lookbackS,
  });
}
