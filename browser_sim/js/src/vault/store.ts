// What the vault keeps, in IndexedDB: each change that belongs together is one transaction, written through to the disk.

import { type Bytes } from "../core/bytes.ts";
import { type Measured } from "../core/measurement.ts";

const NAME = "maskedlark";
const VERSION = 1;

/** A task as pages of one origin opened it. What belongs to it is reached by no other origin. */
export interface OpenedTask {
  /** The task's id and the origin, joined by `keyOf`. */
  readonly key: string;
  readonly bundle: Bytes;
  readonly etag: string | null;
  readonly url: string;
  readonly trusted: readonly Bytes[];
  readonly settings: Settings;
  /** The bytes of the encoder that the task names; null where it names none, or its host served none. */
  readonly encoder: Bytes | null;
  /** In Unix seconds. Of too many tasks of one origin, those opened longest ago are erased. */
  readonly openedAt: number;
}

export interface Settings {
  /** Reports wait for a uniform time up to this long. */
  readonly maxDelayS: number;
  /** The most reports of this origin and task in so many days; null for the task's own cap alone. */
  readonly cap: { readonly reports: number; readonly days: number } | null;
  /** Rows of a public table; a fake report draws each of its columns from one of them. Empty: uniform bytes. */
  readonly population: readonly { readonly features: Uint8Array; readonly keys: readonly number[] }[];
}

/** What every row has: the key of the task that it belongs to, and when it is due, in Unix seconds. */
interface Due {
  readonly task: string;
  readonly due: number;
}

/** What was seen. It becomes a report when it is due, whether or not a conversion matches it before. */
export interface Impression extends Due {
  readonly features: Uint8Array;
  readonly measured: Measured | null;
  readonly matchValue: number;
  readonly priority: number;
  readonly seenAt: number;
  /** The other origins whose conversions may match. */
  readonly conversionOrigins: readonly string[];
  /** What a conversion said of it; null as long as none has matched. */
  readonly conversion: { readonly origin: string; readonly label: number; readonly values: readonly number[] | null } | null;
}

/** A conversion as it came. It is applied when it is due or before: never because of what it would match. */
export interface Conversion extends Due {
  readonly at: number;
  readonly label: number;
  /** Replaces the values that the impression holds, where given. */
  readonly values: readonly number[] | null;
  readonly matchValues: readonly number[];
  readonly since: number;
  /** The other origins whose impressions may match. */
  readonly impressionOrigins: readonly string[];
}

/** A report that is to be made when it is due. */
export interface Waiting extends Due {
  readonly features: Uint8Array;
  readonly label: number | null;
  readonly measured: Measured | null;
}

/** A sealed report; the same bytes are sent until they are answered. */
export interface Sealed extends Due {
  readonly bytes: Bytes;
  readonly tries: number;
}

interface Rows {
  impressions: Impression;
  conversions: Conversion;
  waiting: Waiting;
  outbox: Sealed;
}

export type StoreName = keyof Rows;
export const STORES: readonly StoreName[] = ["impressions", "conversions", "waiting", "outbox"];
const ALL = ["tasks", "made", ...STORES] as const;

export interface Row<T> {
  readonly key: number;
  readonly value: T;
}

const ID_LENGTH = 64;

export function keyOf(id: string, origin: string): string {
  return `${id}@${origin}`;
}

export function idOf(key: string): string {
  return key.slice(0, ID_LENGTH);
}

export function originOf(key: string): string {
  return key.slice(ID_LENGTH + 1);
}

/** The rows of a task of one origin that are due by a moment. */
function dueBy(task: string, moment: number): IDBKeyRange {
  return IDBKeyRange.bound([task, -Infinity], [task, moment]);
}

/** The rows of a task, of all origins. */
function ofAllOrigins(id: string): IDBKeyRange {
  return IDBKeyRange.bound([keyOf(id, "")], [keyOf(id, "\uffff")]);
}

/** The rows of one transaction. Nothing but its own requests may be awaited within it. */
export class Transaction {
  readonly #of: IDBTransaction;

  constructor(of: IDBTransaction) {
    this.#of = of;
  }

  /** The rows of one task and origin that are due by a moment, the first first; all of them without one. */
  async due<N extends StoreName>(name: N, task: string, moment = Infinity): Promise<Row<Rows[N]>[]> {
    return this.#rows(name, dueBy(task, moment));
  }

  /** The rows of one task over all origins, in the order in which they came. */
  async ofAllOrigins<N extends StoreName>(name: N, id: string): Promise<Row<Rows[N]>[]> {
    return (await this.#rows(name, ofAllOrigins(id))).sort((left, right) => left.key - right.key);
  }

  async #rows<N extends StoreName>(name: N, range: IDBKeyRange): Promise<Row<Rows[N]>[]> {
    const index = this.#of.objectStore(name).index("due");
    const [keys, values] = await Promise.all([done(index.getAllKeys(range)), done(index.getAll(range))]);
    return keys.map((key, at) => ({ key: Number(key), value: values[at] as Rows[N] }));
  }

  /** When the first row of a task and origin is due; Infinity where there is none. */
  async firstDue(name: StoreName, task: string): Promise<number> {
    const first = await done(this.#of.objectStore(name).index("due").openKeyCursor(dueBy(task, Infinity)));
    return first === null ? Infinity : Number((first.key as [string, number])[1]);
  }

  async get<N extends StoreName>(name: N, key: number): Promise<Rows[N] | undefined> {
    return (await done(this.#of.objectStore(name).get(key))) as Rows[N] | undefined;
  }

  async has(name: StoreName, key: number): Promise<boolean> {
    return (await done(this.#of.objectStore(name).getKey(key))) !== undefined;
  }

  /** Add a row; of more rows of its task and origin than `most`, delete those that are due first. */
  async add<N extends StoreName>(name: N, value: Rows[N], most: number): Promise<void> {
    const store = this.#of.objectStore(name);
    store.add(value);
    const mine = dueBy(value.task, Infinity);
    const count = await done(store.index("due").count(mine));
    if (count <= most) return;
    for (const key of await done(store.index("due").getAllKeys(mine, count - most))) store.delete(key);
  }

  put<N extends StoreName>(name: N, key: number, value: Rows[N]): void {
    this.#of.objectStore(name).put(value, key);
  }

  delete(name: StoreName, key: number): void {
    this.#of.objectStore(name).delete(key);
  }

  async taskKeys(): Promise<string[]> {
    return (await done(this.#of.objectStore("tasks").getAllKeys())).map(String);
  }

  async task(key: string): Promise<OpenedTask | undefined> {
    return (await done(this.#of.objectStore("tasks").get(key))) as OpenedTask | undefined;
  }

  putTask(task: OpenedTask): void {
    this.#of.objectStore("tasks").put(task);
  }

  /** When reports were made: of a task and origin by their key, of a task by its id. */
  async made(name: string): Promise<readonly number[]> {
    return ((await done(this.#of.objectStore("made").get(name))) as number[] | undefined) ?? [];
  }

  putMade(name: string, times: readonly number[]): void {
    this.#of.objectStore("made").put(times, name);
  }

  /** Delete a task of one origin with all that belongs to it, and what this origin said of other origins' impressions. */
  async erase(task: string): Promise<void> {
    for (const name of STORES) {
      const store = this.#of.objectStore(name);
      for (const key of await done(store.index("due").getAllKeys(dueBy(task, Infinity)))) store.delete(key);
    }
    for (const { key, value } of await this.ofAllOrigins("impressions", idOf(task))) {
      if (value.conversion?.origin === originOf(task)) this.put("impressions", key, { ...value, conversion: null });
    }
    this.#of.objectStore("tasks").delete(task);
    this.#of.objectStore("made").delete(task);
  }

  /** Delete everything but how often a person has reported: those reports are out, and count. */
  async eraseAll(): Promise<void> {
    for (const name of ["tasks", ...STORES]) this.#of.objectStore(name).clear();
    const made = this.#of.objectStore("made");
    for (const name of await done(made.getAllKeys())) if (originOf(String(name)) !== "") made.delete(name);
  }
}

export class Store {
  readonly #database: IDBDatabase;

  private constructor(database: IDBDatabase) {
    this.#database = database;
    database.onversionchange = () => {
      database.close();
    };
  }

  static async open(factory: IDBFactory = indexedDB): Promise<Store> {
    const opening = factory.open(NAME, VERSION);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("tasks", { keyPath: "key" });
      opening.result.createObjectStore("made");
      for (const name of STORES) {
        opening.result.createObjectStore(name, { autoIncrement: true }).createIndex("due", ["task", "due"]);
      }
    };
    return new Store(await done(opening));
  }

  /** Run a change as one transaction; return when it is on the disk. */
  async change<T>(make: (transaction: Transaction) => Promise<T> | T): Promise<T> {
    const transaction = this.#database.transaction(ALL, "readwrite", { durability: "strict" });
    const ended = new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new Error("a transaction was aborted"));
    });
    try {
      const result = await make(new Transaction(transaction));
      await ended;
      return result;
    } catch (error) {
      ended.catch(() => undefined);
      if (transaction.error === null) abort(transaction);
      throw error;
    }
  }

  /** Read in one transaction that changes nothing. */
  read<T>(from: (transaction: Transaction) => Promise<T>): Promise<T> {
    return from(new Transaction(this.#database.transaction(ALL, "readonly")));
  }

  close(): void {
    this.#database.close();
  }
}

function abort(transaction: IDBTransaction): void {
  try {
    transaction.abort();
  } catch {
    // it has ended already
  }
}

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("a request failed"));
  });
}
