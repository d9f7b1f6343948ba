// What the vault keeps, in IndexedDB: each change that belongs together is one transaction, written through to the disk.

import { type Bytes } from "../core/bytes.ts";
import { type Measured } from "../core/measurement.ts";

const NAME = "maskedlark";
const VERSION = 1;

/** A task that a page has opened. */
export interface OpenedTask {
  readonly id: string;
  readonly bundle: Bytes;
  readonly etag: string | null;
  readonly url: string;
  readonly trusted: readonly Bytes[];
  readonly settings: Settings;
  /** The bytes of the encoder that the task names; null where it names none, or its host served none. */
  readonly encoder: Bytes | null;
}

export interface Settings {
  /** Reports wait for a uniform time up to this long. */
  readonly maxDelayS: number;
  /** The most reports of this browser in so many days; null for the task's own alone. */
  readonly cap: { readonly reports: number; readonly days: number } | null;
  /** Rows of a public table; a fake report draws each of its columns from one of them. Empty: uniform bytes. */
  readonly population: readonly { readonly features: Uint8Array; readonly keys: readonly number[] }[];
}

export interface Impression {
  readonly task: string;
  readonly features: Uint8Array;
  readonly measured: Measured | null;
  readonly matchValue: number;
  readonly priority: number;
  readonly seenAt: number;
  readonly expiresAt: number;
}

export interface Conversion {
  readonly task: string;
  readonly label: number;
  /** Replaces the values that the impression holds, where given. */
  readonly values: readonly number[] | null;
  readonly matchValues: readonly number[];
  readonly since: number;
}

/** A call as it came. It is applied later, so that answering it takes as long whether or not anything matches. */
export type Call =
  | { readonly kind: "impression"; readonly at: number; readonly impression: Impression }
  | { readonly kind: "conversion"; readonly at: number; readonly conversion: Conversion };

/** A report that is to be made when it is due. */
export interface Waiting {
  readonly task: string;
  readonly features: Uint8Array;
  readonly label: number | null;
  readonly measured: Measured | null;
  readonly dueAt: number;
}

/** A sealed report; the same bytes are sent until they are answered. */
export interface Sealed {
  readonly task: string;
  readonly bytes: Bytes;
  readonly tries: number;
  readonly notBefore: number;
}

interface Rows {
  tasks: OpenedTask;
  calls: Call;
  impressions: Impression;
  waiting: Waiting;
  outbox: Sealed;
  /** When reports were made, by task: for the caps. */
  made: { readonly task: string; readonly at: number };
}

export type StoreName = keyof Rows;
const STORES: readonly StoreName[] = ["tasks", "calls", "impressions", "waiting", "outbox", "made"];

export interface Row<T> {
  readonly key: number;
  readonly value: T;
}

/** The rows of one transaction. Nothing but its own requests may be awaited within it. */
export class Transaction {
  readonly #of: IDBTransaction;

  constructor(of: IDBTransaction) {
    this.#of = of;
  }

  async rows<N extends StoreName>(name: N): Promise<Row<Rows[N]>[]> {
    const store = this.#of.objectStore(name);
    const [keys, values] = await Promise.all([done(store.getAllKeys()), done(store.getAll())]);
    return keys.map((key, at) => ({ key: Number(key), value: values[at] as Rows[N] }));
  }

  async has(name: StoreName, key: number): Promise<boolean> {
    return (await done(this.#of.objectStore(name).getKey(key))) !== undefined;
  }

  async task(id: string): Promise<OpenedTask | undefined> {
    return (await done(this.#of.objectStore("tasks").get(id))) as OpenedTask | undefined;
  }

  putTask(task: OpenedTask): void {
    this.#of.objectStore("tasks").put(task);
  }

  add<N extends Exclude<StoreName, "tasks">>(name: N, value: Rows[N]): void {
    this.#of.objectStore(name).add(value);
  }

  put<N extends Exclude<StoreName, "tasks">>(name: N, key: number, value: Rows[N]): void {
    this.#of.objectStore(name).put(value, key);
  }

  delete(name: StoreName, key: IDBValidKey): void {
    this.#of.objectStore(name).delete(key);
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
      opening.result.createObjectStore("tasks", { keyPath: "id" });
      for (const name of STORES.slice(1)) opening.result.createObjectStore(name, { autoIncrement: true });
    };
    return new Store(await done(opening));
  }

  /** Runs a change as one transaction; returns when it is on the disk. */
  async change<T>(make: (transaction: Transaction) => Promise<T> | T): Promise<T> {
    const transaction = this.#database.transaction(STORES, "readwrite", { durability: "strict" });
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

  async read<N extends StoreName>(name: N): Promise<Row<Rows[N]>[]> {
    return new Transaction(this.#database.transaction(name, "readonly")).rows(name);
  }

  async task(id: string): Promise<OpenedTask | undefined> {
    return new Transaction(this.#database.transaction("tasks", "readonly")).task(id);
  }

  async has(name: StoreName, key: number): Promise<boolean> {
    return new Transaction(this.#database.transaction(name, "readonly")).has(name, key);
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
