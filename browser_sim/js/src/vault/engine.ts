// What happens to impressions and conversions over time:
//
//   impression -> (its lifetime ends) -> waiting, with fakes -> sealed -> answered
//   conversion -> (an hour, or the end of any impression of its task) -> a label of the impression that it matches
//
// A conversion changes what an impression's report says, and never whether, when or how large a report is made: all of
// that is fixed when the impression is kept. Each step is one transaction, so a browser that is killed at any moment goes
// on where it was: a sealed report is sent again as the same bytes, which the ad server stores once.
//
// Each task of each origin has turns, pauses and a lock of its own. An error in one is recorded there, and stops no other.

import { type Bytes, equal, toHex } from "../core/bytes.ts";
import { invalidExample, MaskedLarkError } from "../core/errors.ts";
import { checkLabel } from "../core/labels.ts";
import { type Measured } from "../core/measurement.ts";
import { below, systemRandomness, uniform } from "../core/randomness.ts";
import { checkFeatures, measuredOf } from "../core/report.ts";
import { Sealer } from "../core/sealer.ts";
import { type Bundle, checkFresh, openBundle, type Task } from "../core/task.ts";
import { isUnderPrivacyControl } from "./consent.ts";
import { fetchBundle, fetchEncoder, type Send, upload } from "./network.ts";
import { readSettings } from "./options.ts";
import {
  type Conversion,
  idOf,
  type Impression,
  keyOf,
  type OpenedTask,
  originOf,
  type Row,
  type Sealed,
  type Store,
  STORES,
  type Transaction,
  type Waiting,
} from "./store.ts";

const LOCK = "maskedlark";
const DAY_S = 86_400;
const LEAST_SLEEP_S = 0.05;
const LONGEST_SLEEP_S = 900;
const FIRST_PAUSE_S = 1;
const LONGEST_PAUSE_S = 300;
const LAST_CALL_S = 3_600;
const LONGEST_WAIT_S = 60;
const MOST_TASKS = 8;
const MOST_ROWS = 20_000;
const MOST_BYTES = 2 ** 23;
const MOST_CONVERSIONS = 1_000;

export interface Surroundings {
  readonly store: Store;
  /** Where reports go: the ad server's intake, without a path. */
  readonly intake: string;
  /** Sends one report; a relay (OHTTP) is put here. */
  readonly send?: Send;
  /** Unix seconds. */
  readonly now?: () => number;
}

export interface Opening {
  readonly origin: string;
  readonly url: string;
  readonly trusted: readonly Bytes[];
  /** As the page sent them. */
  readonly settings: unknown;
  readonly leastDelayS: number;
  /** Whether this origin may open a task of this id. */
  readonly isAllowed: (id: string) => boolean;
}

/** Why a task of one origin could not be served, how often in a row, and until when it is left alone. */
export interface Failure {
  readonly reason: string;
  readonly tries: number;
  readonly until: number;
}

interface Opened {
  readonly kept: OpenedTask;
  readonly bundle: Bundle;
  readonly sealer: Sealer;
}

type Made = Pick<Waiting, "features" | "measured" | "label">;

export class Engine {
  readonly #store: Store;
  readonly #intake: string;
  readonly #send: Send;
  readonly #now: () => number;
  readonly #opened = new Map<string, Opened>();
  readonly #failures = new Map<string, Failure>();
  readonly #timers = new Map<string, { readonly at: number; readonly handle: ReturnType<typeof setTimeout> }>();
  #isStopped = false;
  #rejected = 0;

  constructor(around: Surroundings) {
    this.#store = around.store;
    this.#intake = around.intake.replace(/\/$/, "");
    this.#send = around.send ?? upload;
    this.#now = around.now ?? (() => Date.now() / 1000);
  }

  /** Sealed reports that the ad server refused for good, since this page was loaded. */
  get rejected(): number {
    return this.#rejected;
  }

  /** The tasks that could not be served at their last turn, by key. */
  get failures(): ReadonlyMap<string, Failure> {
    return this.#failures;
  }

  /** Fetch a task's bundle, check it and the settings, and keep both for one origin. */
  async open({ origin, url, trusted, settings, leastDelayS, isAllowed }: Opening): Promise<Task> {
    const fetched = await fetchBundle(url, null);
    if (fetched === "unchanged") throw new MaskedLarkError("Unavailable", "the task host sent no bundle");
    const bundle = await openBundle(fetched.encoded, trusted);
    checkFresh(bundle, this.#now());
    const id = toHex(bundle.task.id);
    if (!isAllowed(id)) throw new MaskedLarkError("Refused", "the vault's site names other origins for this task");
    const asked = readSettings(settings, bundle.task);
    const key = keyOf(id, origin);
    const kept: OpenedTask = {
      key,
      url,
      bundle: fetched.encoded,
      etag: fetched.etag,
      trusted,
      settings: { ...asked, maxDelayS: Math.max(asked.maxDelayS, leastDelayS) },
      encoder: await this.#encoderOf(bundle.task, key, url),
      openedAt: this.#now(),
    };
    const sealer = await Sealer.of(bundle);
    await this.#store.change(async (transaction) => {
      transaction.putTask(kept);
      await this.#eraseOldest(transaction, origin);
    });
    this.#opened.set(key, { kept, bundle, sealer });
    return bundle.task;
  }

  /** The task that an origin has opened. */
  async task(key: string): Promise<Task> {
    return (await this.#task(key)).bundle.task;
  }

  /** The encoder that a task names by its digest: its bytes and the digest. */
  async encoder(key: string): Promise<{ readonly encoded: Bytes; readonly named: Bytes }> {
    const { bundle, kept } = await this.#task(key);
    const named = bundle.task.encoder;
    if (named === null) throw invalidExample("the task names no encoder: give features and a label's number");
    if (kept.encoder === null) throw new MaskedLarkError("Unavailable", "the task host served no encoder: open the task again");
    return { encoded: kept.encoder, named };
  }

  /** Put an impression on the disk. */
  async keepImpression(given: Impression): Promise<void> {
    const { bundle, kept } = await this.#task(given.task);
    const { features, measured } = given;
    checkFeatures(bundle.task, features);
    measuredOf(bundle.task, { features, measured, label: 0 });
    // The report has to leave before the task is over.
    const last = bundle.task.expiresAt - kept.settings.maxDelayS - LAST_CALL_S;
    const due = Math.max(given.seenAt, Math.min(given.due, last));
    await this.#keep("impressions", { ...given, due }, room(bundle.task));
  }

  /** Put a conversion on the disk. The work does not depend on what is kept: nothing is matched now. */
  async keepConversion(given: Conversion): Promise<void> {
    const { task } = (await this.#task(given.task)).bundle;
    const { label, values } = given;
    checkLabel(task.labels, label);
    if (values !== null) {
      const keys = task.measurement?.keys.map(() => 0) ?? [];
      measuredOf(task, { features: new Uint8Array(), measured: { keys, values }, label });
    }
    await this.#keep("conversions", given, MOST_CONVERSIONS);
  }

  async #keep<N extends "impressions" | "conversions">(
    name: N,
    row: N extends "impressions" ? Impression : Conversion,
    most: number,
  ): Promise<void> {
    await this.#store.change(async (transaction) => {
      if ((await transaction.task(row.task)) === undefined) throw notOpened(); // withdrawn meanwhile, in another page
      await transaction.add<"impressions" | "conversions">(name, row, most);
    });
    this.#wake(row.task, row.due);
  }

  /**
   * Forget everything that an origin has kept of a task: what was seen, what waits, what is sealed and not yet sent, and
   * what it said of other origins' impressions. How often a person has reported is kept: those reports are out, and count.
   */
  async withdraw(key: string): Promise<void> {
    await this.#store.change((transaction) => transaction.erase(key));
    this.#opened.delete(key);
  }

  /** Withdraw every task of an origin. */
  async eraseOrigin(origin: string): Promise<void> {
    await this.#store.change(async (transaction) => {
      for (const key of await transaction.taskKeys()) if (originOf(key) === origin) await transaction.erase(key);
    });
  }

  /** Withdraw every task of every origin. */
  async eraseAll(): Promise<void> {
    await this.#store.change((transaction) => transaction.eraseAll());
    this.#opened.clear();
  }

  /** Do what is due for each task, and sleep until more is. */
  async run(): Promise<void> {
    if (!(await this.#mayGoOn())) return;
    const keys = await this.#store.read((transaction) => transaction.taskKeys());
    await Promise.all(keys.map((key) => this.#turn(key)));
  }

  /** No further turns of this engine. */
  stop(): void {
    this.#isStopped = true;
    for (const { handle } of this.#timers.values()) clearTimeout(handle);
    this.#timers.clear();
  }

  /** Do what is due for one task of one origin, in one place at a time over all pages and workers of this vault. */
  async #turn(key: string): Promise<void> {
    const wait = AbortSignal.timeout(LONGEST_WAIT_S * 1000);
    const taken = navigator.locks.request(`${LOCK} ${key}`, { signal: wait }, async () => {
      if (!(await this.#mayGoOn())) return;
      const isPaused = (this.#failures.get(key)?.until ?? 0) > this.#now();
      const isServed = isPaused || (await this.#attempt(key, [this.#applyConversions, this.#endImpressions, this.#sealDue]));
      if (isServed && !isPaused) this.#failures.delete(key);
      await this.#attempt(key, [this.#drain]);
    });
    await taken.catch((error: unknown) => {
      if (!wait.aborted) throw error; // else another page has the lock, or its page is frozen: try again later
    });
    await this.#sleep(key).catch(() => undefined);
  }

  async #attempt(key: string, steps: readonly ((key: string) => Promise<void>)[]): Promise<boolean> {
    try {
      for (const step of steps) await step.call(this, key);
      return true;
    } catch (error) {
      const tries = (this.#failures.get(key)?.tries ?? 0) + 1;
      const reason = error instanceof MaskedLarkError ? error.message : "a stored row or the storage is broken";
      this.#failures.set(key, { reason, tries, until: this.#now() + pauseAfter(tries - 1) });
      return false;
    }
  }

  /** Whether to go on. Under Global Privacy Control nothing is left to go on with. */
  async #mayGoOn(): Promise<boolean> {
    if (!isUnderPrivacyControl()) return true;
    await this.eraseAll();
    return false;
  }

  async #sleep(key: string): Promise<void> {
    const [sending, ...serving] = await this.#store.read((transaction) =>
      Promise.all((["outbox", ...STORES.filter((name) => name !== "outbox")] as const).map((name) => transaction.firstDue(name, key))),
    );
    const next = Math.min(sending!, Math.max(Math.min(...serving), this.#failures.get(key)?.until ?? 0));
    clearTimeout(this.#timers.get(key)?.handle);
    this.#timers.delete(key);
    if (next < Infinity) this.#wake(key, next);
  }

  /** See to it that a task has a turn at a moment. */
  #wake(key: string, at: number): void {
    const known = this.#timers.get(key);
    if (this.#isStopped || (known !== undefined && known.at <= at)) return;
    clearTimeout(known?.handle);
    const seconds = Math.min(Math.max(at - this.#now(), LEAST_SLEEP_S), LONGEST_SLEEP_S);
    const handle = setTimeout(() => {
      this.#timers.delete(key);
      void this.#turn(key).catch(() => this.#wake(key, this.#now() + LONGEST_PAUSE_S));
    }, seconds * 1000);
    this.#timers.set(key, { at, handle });
  }

  /** Fetched once, when a task is opened: a later request would tell when something was seen. */
  async #encoderOf(task: Task, key: string, url: string): Promise<Bytes | null> {
    if (task.encoder === null) return null;
    const kept = await this.#store.read((transaction) => transaction.task(key));
    return kept?.encoder ?? fetchEncoder(url, task.encoder);
  }

  /** Erase the tasks that an origin opened longest ago, where it has too many. */
  async #eraseOldest(transaction: Transaction, origin: string): Promise<void> {
    const keys = (await transaction.taskKeys()).filter((key) => originOf(key) === origin);
    if (keys.length <= MOST_TASKS) return;
    const opened = await Promise.all(keys.map(async (key) => ({ key, at: (await transaction.task(key))?.openedAt ?? 0 })));
    opened.sort((left, right) => left.at - right.at);
    for (const { key } of opened.slice(0, -MOST_TASKS)) await transaction.erase(key);
  }

  /** A task as it is on the disk: another page may have opened it anew, or withdrawn it. */
  async #task(key: string): Promise<Opened> {
    const kept = await this.#store.read((transaction) => transaction.task(key));
    if (kept === undefined) {
      this.#opened.delete(key);
      throw notOpened();
    }
    const known = this.#opened.get(key);
    if (known !== undefined && known.kept.openedAt === kept.openedAt && equal(known.kept.bundle, kept.bundle)) return known;
    const bundle = await openBundle(kept.bundle, kept.trusted);
    const settings = readSettings(kept.settings, bundle.task); // storage may be broken
    const opened = { kept: { ...kept, settings }, bundle, sealer: await Sealer.of(bundle) };
    this.#opened.set(key, opened);
    return opened;
  }

  /**
   * Give impressions the labels of the conversions that match them, over all origins of a task, in the order in which
   * conversions came.
   */
  async #applyConversions(key: string): Promise<void> {
    const id = idOf(key);
    await this.#store.change(async (transaction) => {
      const conversions = await transaction.ofAllOrigins("conversions", id);
      const impressions = conversions.length === 0 ? [] : await transaction.ofAllOrigins("impressions", id);
      for (const conversion of conversions) {
        transaction.delete("conversions", conversion.key);
        const at = best(impressions, conversion.value);
        // One that matches nothing writes a row back as it was: the same work is done either way.
        const row = impressions[at] ?? impressions[0];
        if (row === undefined) continue;
        const { label, values, task } = conversion.value;
        const value = at < 0 ? row.value : { ...row.value, conversion: { origin: originOf(task), label, values } };
        if (at >= 0) impressions[at] = { ...row, value };
        transaction.put("impressions", row.key, value);
      }
    });
  }

  async #endImpressions(key: string): Promise<void> {
    for (const row of await this.#due("impressions", key)) {
      if (!(await this.#mayGoOn())) return;
      const { bundle, kept } = await this.#task(key);
      await this.#store.change(async (transaction) => {
        const impression = await transaction.get("impressions", row.key);
        if (impression === undefined) return; // withdrawn meanwhile
        transaction.delete("impressions", row.key);
        await this.#schedule(transaction, bundle.task, kept, impression);
      });
    }
  }

  /**
   * Schedule an impression's report, and fake ones beside it, each with a delay of its own.
   *
   * A task with a default label reports it where no conversion matched. Another sends a fake report then: that there is
   * one report for each impression tells nothing of conversions.
   */
  async #schedule(transaction: Transaction, task: Task, kept: OpenedTask, impression: Impression): Promise<void> {
    const { features, measured, conversion } = impression;
    const { defaultLabel } = task.labels;
    const label = conversion?.label ?? defaultLabel;
    const isOpen = await this.#isWithinCaps(transaction, task, kept, label !== null);
    if (!isOpen && defaultLabel !== null) return; // impressions alone, converted or not, have reached the cap
    const now = this.#now();
    const schedule = (one: Made): Promise<void> => {
      const due = now + kept.settings.maxDelayS * uniform(systemRandomness);
      return transaction.add("waiting", { ...one, task: kept.key, due }, room(task));
    };
    const values = conversion?.values ?? null;
    const reported = measured && values ? { keys: measured.keys, values } : measured;
    // Drawn whether or not a conversion matched: the work is the same.
    const other = defaultLabel === null ? fake(task, kept) : null;
    await schedule(other !== null && (!isOpen || label === null) ? other : { features, measured: reported, label });
    while (uniform(systemRandomness) < task.fakeReportRate) await schedule(fake(task, kept));
  }

  /** Whether caps leave room for a report, which is counted if it is a real one. */
  async #isWithinCaps(transaction: Transaction, task: Task, kept: OpenedTask, isReal: boolean): Promise<boolean> {
    const now = this.#now();
    const { cap } = kept.settings;
    const limits: { readonly name: string; readonly most: number; readonly since: number }[] = [];
    // Which reports become one dataset is not for a browser to know: so many of a person, over all origins.
    if (task.isPerUser) limits.push({ name: idOf(kept.key), most: task.reportsPerUser, since: -Infinity });
    if (cap !== null) limits.push({ name: kept.key, most: cap.reports, since: now - cap.days * DAY_S });
    const made = await Promise.all(
      limits.map(async ({ name, since }) => (await transaction.made(name)).filter((at) => at > since)),
    );
    const isOpen = limits.every(({ most }, number) => made[number]!.length < most);
    limits.forEach(({ name }, number) => {
      transaction.putMade(name, isOpen && isReal ? [...made[number]!, now] : made[number]!);
    });
    return isOpen;
  }

  async #sealDue(key: string): Promise<void> {
    for (const row of await this.#due("waiting", key)) {
      if (!(await this.#mayGoOn())) return;
      const now = this.#now();
      const bytes = await this.#sealed(row.value, now);
      const { bundle } = await this.#task(key);
      await this.#store.change(async (transaction) => {
        if (!(await transaction.has("waiting", row.key))) return; // withdrawn meanwhile
        transaction.delete("waiting", row.key);
        if (bytes !== undefined) await transaction.add("outbox", { task: key, bytes, tries: 0, due: now }, room(bundle.task));
      });
    }
  }

  /** The upload's bytes; undefined where the task has ended meanwhile. */
  async #sealed(waiting: Waiting, now: number): Promise<Bytes | undefined> {
    let opened = await this.#task(waiting.task);
    if (now >= opened.bundle.task.expiresAt) return undefined;
    if (now > opened.bundle.notAfter) opened = await this.#refreshed(opened);
    const { features, label, measured } = waiting;
    return opened.sealer.report({ features, label, measured }, now);
  }

  /** The same task with newer keys, from its host. */
  async #refreshed(opened: Opened): Promise<Opened> {
    const { kept } = opened;
    const answer = await fetchBundle(kept.url, kept.etag);
    if (answer === "unchanged") throw new MaskedLarkError("Unavailable", "the task host has no newer keys");
    const bundle = await openBundle(answer.encoded, kept.trusted);
    if (toHex(bundle.task.id) !== idOf(kept.key)) throw new MaskedLarkError("InvalidTask", "the task host serves another task");
    checkFresh(bundle, this.#now());
    await this.#store.change(async (transaction) => {
      const now = await transaction.task(kept.key);
      if (now === undefined) throw notOpened(); // withdrawn meanwhile
      transaction.putTask({ ...now, bundle: answer.encoded, etag: answer.etag });
    });
    return this.#task(kept.key);
  }

  async #drain(key: string): Promise<void> {
    for (const row of await this.#due("outbox", key)) {
      if (!(await this.#mayGoOn())) return;
      if (!(await this.#store.read((transaction) => transaction.has("outbox", row.key)))) continue; // withdrawn meanwhile
      const answer = await this.#send(`${this.#intake}/v1/reports`, row.value.bytes);
      if (answer.kind === "later") await this.#postpone(row, answer.afterS);
      else {
        if (answer.kind === "rejected") this.#rejected += 1;
        await this.#store.change((transaction) => transaction.delete("outbox", row.key));
      }
    }
  }

  async #postpone({ value, key }: Row<Sealed>, afterS: number | undefined): Promise<void> {
    const later = { ...value, tries: value.tries + 1, due: this.#now() + pauseAfter(value.tries, afterS) };
    await this.#store.change(async (transaction) => {
      if (await transaction.has("outbox", key)) transaction.put("outbox", key, later);
    });
  }

  #due<N extends "impressions" | "waiting" | "outbox">(name: N, key: string) {
    return this.#store.read((transaction) => transaction.due(name, key, this.#now()));
  }
}

/** Seconds to wait after so many tries, with a jitter, so that browsers do not come back together. */
function pauseAfter(tries: number, hintS?: number): number {
  return (hintS ?? Math.min(FIRST_PAUSE_S * 2 ** tries, LONGEST_PAUSE_S)) * (1 + uniform(systemRandomness));
}

function notOpened(): MaskedLarkError {
  return new MaskedLarkError("Refused", "the task was not opened, or was withdrawn");
}

/** The most rows of a task and origin in one store: as many as fit into a few mebibytes. */
function room(task: Task): number {
  const bytes = 2 * task.numFeatures + 32 * task.numCandidates + 256;
  return Math.min(MOST_ROWS, Math.floor(MOST_BYTES / bytes));
}

/** The place of the impression that a conversion takes: the highest priority, and of those the latest; -1 for none. */
function best(rows: readonly Row<Impression>[], conversion: Conversion): number {
  return rows.reduce((found, { value }, at) => {
    if (!isMatch(value, conversion)) return found;
    const other = rows[found]?.value;
    const isBetter =
      other === undefined ||
      value.priority > other.priority ||
      (value.priority === other.priority && value.seenAt >= other.seenAt);
    return isBetter ? at : found;
  }, -1);
}

/** Whether a conversion may take an impression: both origins have to name each other. A broken row matches nothing. */
function isMatch(impression: Impression, conversion: Conversion): boolean {
  const saver = originOf(impression.task);
  const converter = originOf(conversion.task);
  const { matchValue, seenAt, due, conversionOrigins } = impression;
  return (
    impression.conversion === null &&
    (saver === converter || (includes(conversionOrigins, converter) && includes(conversion.impressionOrigins, saver))) &&
    includes(conversion.matchValues, matchValue) &&
    seenAt >= conversion.since &&
    seenAt <= conversion.at &&
    due > conversion.at
  );
}

function includes(list: unknown, item: string | number): boolean {
  return Array.isArray(list) && list.includes(item);
}

/** Each column on its own, as frequent as in the published population. */
function fake(task: Task, kept: OpenedTask): Made {
  const rows = kept.settings.population;
  const pick = (): (typeof rows)[number] | undefined =>
    rows.length === 0 ? undefined : rows[below(rows.length, systemRandomness)];
  const features = systemRandomness(task.numFeatures);
  if (rows.length > 0) features.forEach((_, column) => (features[column] = pick()!.features[column]!));
  const measured: Measured | null = task.measurement && {
    keys: task.measurement.keys.map((key, column) => pick()?.keys[column] ?? below(key.below, systemRandomness)),
    values: task.measurement.values.map(() => 0),
  };
  return { features, measured, label: null };
}
