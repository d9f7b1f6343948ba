// What happens to impressions and conversions over time: they match or expire, wait, are sealed when due, and are sent.
//
//   call -> impression -> (conversion, or the end of its lifetime) -> waiting, with fakes -> sealed -> answered
//
// Each step is one transaction, so a browser that is killed at any moment goes on where it was: a sealed report is sent
// again as the same bytes, which the ad server stores once.

import { type Bytes, equal, toHex } from "../core/bytes.ts";
import { invalidExample, MaskedLarkError } from "../core/errors.ts";
import { checkLabel } from "../core/labels.ts";
import { below, systemRandomness, uniform } from "../core/randomness.ts";
import { checkFeatures, measuredOf } from "../core/report.ts";
import { Sealer } from "../core/sealer.ts";
import { type Bundle, checkFresh, openBundle, type Task } from "../core/task.ts";
import { type Measured } from "../core/measurement.ts";
import { type Call, type Impression, type OpenedTask, type Row, type Sealed, type Store, type Transaction, type Waiting } from "./store.ts";
import { fetchBundle, fetchEncoder, type Send, upload } from "./network.ts";

const LOCK = "maskedlark engine";
const DAY_S = 86_400;
const LONGEST_SLEEP_S = 900;
const FIRST_PAUSE_S = 1;
const LONGEST_PAUSE_S = 300;

export interface Surroundings {
  readonly store: Store;
  /** Where reports go: the ad server's intake, without a path. */
  readonly intake: string;
  /** Sends one report; a relay (OHTTP) is put here. */
  readonly send?: Send;
  /** Unix seconds. */
  readonly now?: () => number;
}

interface Opened {
  readonly kept: OpenedTask;
  readonly bundle: Bundle;
  readonly sealer: Sealer;
}

export class Engine {
  readonly #store: Store;
  readonly #intake: string;
  readonly #send: Send;
  readonly #now: () => number;
  readonly #opened = new Map<string, Opened>();
  /** Until when a task that could not be served is left alone. */
  readonly #pauses = new Map<string, { readonly tries: number; readonly until: number }>();
  #timer: ReturnType<typeof setTimeout> | undefined;
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

  /** Check a task's bundle and keep it. */
  async keep(url: string, encoded: Bytes, etag: string | null, options: Pick<OpenedTask, "trusted" | "settings">): Promise<Task> {
    const bundle = await openBundle(encoded, options.trusted);
    checkFresh(bundle, this.#now());
    const id = toHex(bundle.task.id);
    const encoder = await this.#encoderOf(bundle.task, id, url);
    const { trusted, settings } = options;
    const kept = { id, url, bundle: encoded, etag, trusted, settings, encoder };
    const sealer = await Sealer.of(bundle);
    await this.#store.change((transaction) => transaction.putTask(kept));
    this.#opened.set(kept.id, { kept, bundle, sealer });
    return bundle.task;
  }

  /** The encoder that a task names by its digest: its bytes and the digest. */
  async encoder(id: string): Promise<{ readonly encoded: Bytes; readonly named: Bytes }> {
    const { bundle, kept } = await this.#task(id);
    const named = bundle.task.encoder;
    if (named === null) throw invalidExample("the task names no encoder: give features and a label's number");
    const encoded = kept.encoder ?? null; // rows of earlier versions have none
    if (encoded === null) throw new MaskedLarkError("Unavailable", "the task host served no encoder: open the task again");
    return { encoded, named };
  }

  /** Put a call on the disk. What comes of it is never told. */
  async note(call: Call): Promise<void> {
    const id = taskOf(call);
    const { bundle } = await this.#task(id);
    checkCall(bundle.task, call);
    await this.#store.change(async (transaction) => {
      if ((await transaction.task(id)) === undefined) throw notOpened(); // withdrawn meanwhile, in another page
      transaction.add("calls", call);
    });
  }

  /**
   * Forget everything of a task: what was seen, what waits, what is sealed and not yet sent.
   * Of a task that protects persons it is still known when reports were made: those are out, and count.
   * So it is of one that was withdrawn before, of which nobody knows any more what it protects.
   */
  async withdraw(id: string): Promise<void> {
    const task = await this.#task(id).then((opened) => opened.bundle.task, () => undefined);
    const names = ["calls", "impressions", "waiting", "outbox"] as const;
    await this.#store.change(async (transaction) => {
      for (const name of task === undefined || task.isPerUser ? names : ([...names, "made"] as const)) {
        for (const { key, value } of await transaction.rows(name)) {
          if (taskOf(value) === id) transaction.delete(name, key);
        }
      }
      transaction.delete("tasks", id);
    });
    this.#opened.delete(id);
  }

  /** Do what is due, in one place at a time over all pages and workers of this vault; then sleep until more is. */
  async run(): Promise<void> {
    await navigator.locks.request(LOCK, async () => {
      for (const step of [this.#applyCalls, this.#expire, this.#sealDue, this.#drain]) await step.call(this);
    });
    await this.#sleep();
  }

  /** No further turns of this engine. */
  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** When anything is due next, in Unix seconds; undefined for never. */
  async nextMoment(): Promise<number | undefined> {
    const [calls, impressions, waiting, outbox] = await Promise.all([
      this.#store.read("calls"),
      this.#store.read("impressions"),
      this.#store.read("waiting"),
      this.#store.read("outbox"),
    ]);
    let next = Infinity;
    const served = (id: string, at: number): void => {
      next = Math.min(next, Math.max(at, this.#pauses.get(id)?.until ?? 0));
    };
    for (const { value } of calls) served(taskOf(value), 0);
    for (const { value } of impressions) served(value.task, value.expiresAt);
    for (const { value } of waiting) served(value.task, value.dueAt);
    for (const { value } of outbox) next = Math.min(next, value.notBefore);
    return next === Infinity ? undefined : next;
  }

  async #sleep(): Promise<void> {
    const next = await this.nextMoment();
    clearTimeout(this.#timer);
    if (next === undefined) return;
    const seconds = Math.min(Math.max(next - this.#now(), 0.05), LONGEST_SLEEP_S);
    this.#timer = setTimeout(() => void this.run().catch(() => this.#sleep()), seconds * 1000);
  }

  /** Fetched once, when a task is opened: a later request would tell when something was seen. */
  async #encoderOf(task: Task, id: string, url: string): Promise<Bytes | null> {
    if (task.encoder === null) return null;
    return (await this.#store.task(id))?.encoder ?? fetchEncoder(url, task.encoder);
  }

  /** A task as it is on the disk: another page may have opened it anew, or withdrawn it. */
  async #task(id: string): Promise<Opened> {
    const kept = await this.#store.task(id);
    if (kept === undefined) {
      this.#opened.delete(id);
      throw notOpened();
    }
    const known = this.#opened.get(id);
    let opened: Opened;
    if (known !== undefined && equal(known.kept.bundle, kept.bundle)) opened = { ...known, kept };
    else {
      const bundle = await openBundle(kept.bundle, kept.trusted);
      opened = { kept, bundle, sealer: await Sealer.of(bundle) };
    }
    this.#opened.set(id, opened);
    return opened;
  }

  /** One row after the other. A task that cannot be served now (its host has no fresh keys, say) pauses, and no other. */
  async #each<T extends Call | Impression | Waiting>(rows: readonly Row<T>[], serve: (row: Row<T>) => Promise<void>): Promise<void> {
    const now = this.#now(); // a pause that ends between two rows must not let the later one go first
    for (const row of rows) {
      const id = taskOf(row.value);
      const pause = this.#pauses.get(id);
      if (pause !== undefined && pause.until > now) continue;
      try {
        await serve(row);
        this.#pauses.delete(id);
      } catch (error) {
        if (!(error instanceof MaskedLarkError)) throw error;
        const tries = (pause?.tries ?? 0) + 1;
        this.#pauses.set(id, { tries, until: this.#now() + pauseAfter(tries - 1) });
      }
    }
  }

  async #applyCalls(): Promise<void> {
    await this.#each(await this.#store.read("calls"), async ({ key, value: call }) => {
      const id = taskOf(call);
      const { bundle, kept } = await this.#task(id);
      await this.#store.change(async (transaction) => {
        if (!(await transaction.has("calls", key))) return; // withdrawn meanwhile
        transaction.delete("calls", key);
        if (call.kind === "impression") {
          transaction.add("impressions", call.impression);
          return;
        }
        const { label, values, matchValues, since } = call.conversion;
        const matching = (await transaction.rows("impressions")).filter(
          ({ value }) =>
            value.task === id && matchValues.includes(value.matchValue) && value.seenAt >= since && value.expiresAt > call.at,
        );
        const matched = best(matching);
        if (matched === undefined) return;
        const { features, measured } = matched.value;
        transaction.delete("impressions", matched.key);
        const reported = measured && values ? { keys: measured.keys, values } : measured;
        await this.#schedule(transaction, bundle.task, kept, { features, measured: reported, label });
      });
    });
  }

  async #expire(): Promise<void> {
    const now = this.#now();
    const over = (await this.#store.read("impressions")).filter(({ value }) => value.expiresAt <= now);
    await this.#each(over, async ({ key, value }) => {
      const { bundle, kept } = await this.#task(value.task);
      const label = bundle.task.labels.defaultLabel;
      await this.#store.change(async (transaction) => {
        if (!(await transaction.has("impressions", key))) return;
        transaction.delete("impressions", key);
        if (label === null) return; // the task has no label for what did not convert
        await this.#schedule(transaction, bundle.task, kept, { features: value.features, measured: value.measured, label });
      });
    });
  }

  /** A real report, and fake ones beside it, each with a delay of its own. */
  async #schedule(
    transaction: Transaction,
    task: Task,
    kept: OpenedTask,
    real: Pick<Waiting, "features" | "measured" | "label">,
  ): Promise<void> {
    const now = this.#now();
    const delayed = (one: Pick<Waiting, "features" | "measured" | "label">): Waiting => ({
      ...one,
      task: kept.id,
      dueAt: now + kept.settings.maxDelayS * uniform(systemRandomness),
    });
    const { cap } = kept.settings;
    if (cap !== null || task.isPerUser) {
      let [ever, lately] = [0, 0];
      for (const { key, value } of await transaction.rows("made")) {
        if (value.task !== kept.id) continue;
        ever += 1;
        if (cap !== null && value.at > now - cap.days * DAY_S) lately += 1;
        else if (!task.isPerUser) transaction.delete("made", key);
      }
      // Which reports become one dataset is not for a browser to know: so many of a person, whatever the page says.
      if (task.isPerUser && ever >= task.reportsPerUser) return;
      if (cap !== null && lately >= cap.reports) return;
      transaction.add("made", { task: kept.id, at: now });
    }
    transaction.add("waiting", delayed(real));
    while (uniform(systemRandomness) < task.fakeReportRate) {
      transaction.add("waiting", delayed(fake(task, kept)));
    }
  }

  async #sealDue(): Promise<void> {
    const now = this.#now();
    const due = (await this.#store.read("waiting")).filter(({ value }) => value.dueAt <= now);
    await this.#each(due, async ({ key, value }) => {
      const bytes = await this.#sealed(value, now);
      await this.#store.change(async (transaction) => {
        if (!(await transaction.has("waiting", key))) return;
        transaction.delete("waiting", key);
        if (bytes !== undefined) transaction.add("outbox", { task: value.task, bytes, tries: 0, notBefore: now });
      });
    });
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
    if (toHex(bundle.task.id) !== kept.id) throw new MaskedLarkError("InvalidTask", "the task host serves another task");
    checkFresh(bundle, this.#now());
    await this.#store.change(async (transaction) => {
      const now = await transaction.task(kept.id);
      if (now === undefined) throw notOpened(); // withdrawn meanwhile
      transaction.putTask({ ...now, bundle: answer.encoded, etag: answer.etag });
    });
    return this.#task(kept.id);
  }

  async #drain(): Promise<void> {
    for (const row of await this.#store.read("outbox")) {
      if (row.value.notBefore > this.#now() || !(await this.#store.has("outbox", row.key))) continue; // or withdrawn
      const answer = await this.#send(`${this.#intake}/v1/reports`, row.value.bytes);
      if (answer.kind === "later") await this.#postpone(row, answer.afterS);
      else {
        if (answer.kind === "rejected") this.#rejected += 1;
        await this.#store.change((transaction) => transaction.delete("outbox", row.key));
      }
    }
  }

  async #postpone(row: Row<Sealed>, afterS: number | undefined): Promise<void> {
    const { value, key } = row;
    const later = { ...value, tries: value.tries + 1, notBefore: this.#now() + pauseAfter(value.tries, afterS) };
    await this.#store.change(async (transaction) => {
      if (await transaction.has("outbox", key)) transaction.put("outbox", key, later);
    });
  }
}

/** Seconds to wait after so many tries, with a jitter, so that browsers do not come back together. */
function pauseAfter(tries: number, hintS?: number): number {
  return (hintS ?? Math.min(FIRST_PAUSE_S * 2 ** tries, LONGEST_PAUSE_S)) * (1 + uniform(systemRandomness));
}

function notOpened(): MaskedLarkError {
  return new MaskedLarkError("Refused", "the task was not opened, or was withdrawn");
}

/** Throws InvalidExample for a call that could never make a report: it depends on the call alone. */
function checkCall(task: Task, call: Call): void {
  if (call.kind === "conversion") {
    const { label, values } = call.conversion;
    checkLabel(task.labels, label);
    if (values !== null) {
      const keys = task.measurement?.keys.map(() => 0) ?? [];
      measuredOf(task, { features: new Uint8Array(), measured: { keys, values }, label });
    }
    return;
  }
  const { features, measured } = call.impression;
  checkFeatures(task, features);
  measuredOf(task, { features, measured, label: 0 });
}

/** The highest priority, and of those the latest. */
function best(rows: readonly Row<Impression>[]): Row<Impression> | undefined {
  return [...rows].sort(
    (left, right) => right.value.priority - left.value.priority || right.value.seenAt - left.value.seenAt,
  )[0];
}

/** Each column on its own, as frequent as in the published population. */
function fake(task: Task, kept: OpenedTask): Pick<Waiting, "features" | "measured" | "label"> {
  const rows = kept.settings.population;
  const pick = (): (typeof rows)[number] | undefined =>
    rows.length === 0 ? undefined : rows[below(rows.length, systemRandomness)];
  const features = Uint8Array.from(
    { length: task.numFeatures },
    (_, column) => pick()?.features[column] ?? systemRandomness(1)[0]!,
  );
  const measured: Measured | null = task.measurement && {
    keys: task.measurement.keys.map((key, column) => pick()?.keys[column] ?? below(key.below, systemRandomness)),
    values: task.measurement.values.map(() => 0),
  };
  return { features, measured, label: null };
}

function taskOf(row: Call | Impression | Waiting | Sealed | { readonly task: string }): string {
  if (!("kind" in row)) return row.task;
  return row.kind === "impression" ? row.impression.task : row.conversion.task;
}
