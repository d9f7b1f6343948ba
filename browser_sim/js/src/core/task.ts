// A task and its bundle: public settings, both helpers' signatures, the keys to seal to. maskedlark/reports/task.py

import { ascii, type Bytes, concat, digest, equal } from "./bytes.ts";
import { type Node, parse } from "./canonical.ts";
import { invalidExample, invalidTask, MaskedLarkError } from "./errors.ts";
import { type LabelSpace, readLabels } from "./labels.ts";
import { type Measurement, readMeasurement } from "./measurement.ts";
import { boolean, bytes, Fields, float, integer, list, must, nullable, oneOf, pair, type Read, text } from "./shape.ts";

const SUITES = [
  "x25519-aes128gcm",
  "x25519-chacha20poly1305",
  "mlkem768-x25519-aes128gcm",
  "mlkem768-x25519-chacha20poly1305",
] as const;
const LATEST = 2 ** 40;
/** Of the protocol. */
const VERSION = 1;
const TASK_DOMAIN = ascii("maskedlark/v1 task\0");
const KEYS_DOMAIN = ascii("maskedlark/v1 hpke keys\0");

export type Suite = (typeof SUITES)[number];

export interface Helper {
  readonly name: string;
  readonly verifyKey: Bytes;
  readonly agreementKey: Bytes;
}

export interface Task {
  readonly id: Bytes;
  readonly origin: string;
  readonly name: string;
  readonly helpers: readonly [Helper, Helper];
  readonly numFeatures: number;
  readonly labels: LabelSpace;
  readonly numCandidates: number;
  readonly fakeReportRate: number;
  readonly featureEpsilon: number | null;
  readonly timeBucketS: number;
  readonly startsAt: number;
  readonly expiresAt: number;
  readonly measurement: Measurement | null;
  /** With unit user: the most reports of one person in one dataset. */
  readonly reportsPerUser: number;
  readonly isPerUser: boolean;
  readonly hasProof: boolean;
  /** The digest of the encoder that makes features of what a page knows; null for a task that names none. */
  readonly encoder: Bytes | null;
}

export interface HpkeKey {
  readonly keyId: number;
  readonly suite: Suite;
  readonly publicKey: Bytes;
}

interface KeyList {
  readonly verifyKey: Bytes;
  readonly keys: readonly HpkeKey[];
  readonly notAfter: number;
  readonly raw: Bytes;
  readonly signature: Bytes;
}

/** A bundle whose four signatures were checked. */
export interface Bundle {
  readonly task: Task;
  /** The key to seal to, by role. */
  readonly keys: readonly [HpkeKey, HpkeKey];
  /** The last Unix second at which to seal by these keys. */
  readonly notAfter: number;
}

/**
 * Parse and check the bytes that a task host serves.
 *
 * @param encoded The raw bytes; they are never spelled again.
 * @param trusted The long-term keys of the helpers that this page trusts, in hexadecimal or bytes; both helpers of the task
 *   must be among them.
 * @throws MaskedLarkError InvalidTask; UnsupportedTask for a task whose reports this client does not make.
 */
export async function openBundle(encoded: Bytes, trusted: readonly Bytes[]): Promise<Bundle> {
  const fields = new Fields(parse(encoded), "bundle", ["key_lists", "signatures", "task"]);
  const { task, raw } = await fields.get("task", readTask);
  const signatures = fields.get("signatures", pair(bytes(64, 64)));
  const lists = fields.get("key_lists", pair(readKeyList));
  for (const role of [0, 1] as const) {
    const helper = task.helpers[role];
    must(
      trusted.some((key) => equal(key, helper.verifyKey)),
      `helper ${role} of the task is not one that this page trusts`,
    );
    must(equal(lists[role].verifyKey, helper.verifyKey), "the key list is of another helper than the task names");
    await verify(helper.verifyKey, concat(TASK_DOMAIN, raw), signatures[role]);
    await verify(helper.verifyKey, concat(KEYS_DOMAIN, lists[role].raw), lists[role].signature);
  }
  return {
    task,
    keys: [lists[0].keys[0]!, lists[1].keys[0]!],
    notAfter: Math.min(lists[0].notAfter, lists[1].notAfter),
  };
}

/** The bucket that a moment falls into, which is checked to lie in the task's period. */
export function timeBucket(task: Task, unixS: number): number {
  const second = Math.floor(unixS);
  if (!(second >= task.startsAt - (task.startsAt % task.timeBucketS) && second < task.expiresAt)) {
    throw invalidExample("the time lies outside the task's period");
  }
  return (second - (second % task.timeBucketS)) / task.timeBucketS;
}

async function verify(key: Bytes, message: Bytes, signature: Bytes): Promise<void> {
  let isGood = false;
  try {
    const imported = await crypto.subtle.importKey("raw", key, "Ed25519", false, ["verify"]);
    isGood = await crypto.subtle.verify("Ed25519", imported, signature, message);
  } catch (error) {
    if (error instanceof DOMException && error.name === "NotSupportedError") {
      throw new MaskedLarkError("Unavailable", "this browser has no Ed25519 in WebCrypto");
    }
  }
  must(isGood, "a signature does not verify under the helper's long-term key");
}

const readKey: Read<HpkeKey> = (node, name) => {
  const fields = new Fields(node, name, ["key_id", "public_key", "suite"]);
  const suite = fields.get("suite", oneOf(...SUITES));
  const length = suite.startsWith("mlkem768") ? 1184 + 32 : 32;
  return {
    keyId: fields.get("key_id", integer(0, 255)),
    suite,
    publicKey: fields.get("public_key", bytes(length, length)),
  };
};

const readKeyList: Read<KeyList> = (node, name) => {
  const outer = new Fields(node, name, ["key_list", "signature"]);
  const signature = outer.get("signature", bytes(64, 64));
  return outer.get("key_list", (inner, innerName) => {
    const fields = new Fields(inner, innerName, ["keys", "verify_key"], ["not_after"]);
    return {
      verifyKey: fields.get("verify_key", bytes(32, 32)),
      keys: fields.get("keys", list(1, 16, readKey)),
      notAfter: fields.has("not_after") ? fields.get("not_after", integer(1, LATEST)) : 0,
      raw: fields.raw,
      signature,
    };
  });
};

const readHelper: Read<Helper> = (node, name) => {
  const fields = new Fields(node, name, ["agreement_key", "name", "verify_key"]);
  return {
    name: fields.get("name", text(1, 200)),
    verifyKey: fields.get("verify_key", bytes(32, 32)),
    agreementKey: fields.get("agreement_key", bytes(32, 32)),
  };
};

const REQUIRED = [
  "clip_norm",
  "collusion_epsilon",
  "delta",
  "epsilon",
  "expires_at",
  "fake_report_rate",
  "feature_epsilon",
  "frac_bits",
  "helpers",
  "labels",
  "max_dataset_size",
  "measurement",
  "mechanism",
  "min_batch_size",
  "name",
  "noise",
  "norm",
  "num_decoys",
  "num_features",
  "origin",
  "salt",
  "starts_at",
  "time_bucket_s",
  "version",
];
const OPTIONAL = ["encoder", "proof", "reports_per_user", "unit", "updates"]; // not written where they say nothing

/** An origin as browsers spell it, and a helper accepts it: in no other way, or two parties might read two hosts. */
const origin: Read<string> = (node, name) => {
  const spelled = text(1, 200)(node, name);
  const isHttp = /^https?:\/\/[^/]+$/.test(spelled);
  must(isHttp && URL.canParse(spelled) && new URL(spelled).origin === spelled, `${name} is scheme://host[:port]`);
  return spelled;
};

/** Refuse a task of another version for that, and not for the fields in which versions differ. */
function checkVersion(node: Node): void {
  const version = node.kind === "object" ? node.fields.get("version") : undefined;
  if (version?.kind !== "integer" || version.value === VERSION) return;
  const behind = version.value > VERSION ? "this client" : "the party that made it";
  throw new MaskedLarkError(
    "UnsupportedTask",
    `the task is of version ${version.value}, this client implements ${VERSION}: upgrade ${behind}`,
  );
}

async function readTask(node: Node, name: string): Promise<{ task: Task; raw: Bytes }> {
  checkVersion(node);
  const fields = new Fields(node, name, REQUIRED, OPTIONAL);
  fields.get("version", integer(VERSION, VERSION));
  if (fields.has("updates")) {
    throw new MaskedLarkError("UnsupportedTask", "the task takes updates of a model: its devices train");
  }
  const numCandidates = fields.get("num_decoys", integer(1, 1023)) + 1;
  const isPerUser = fields.has("unit") && fields.get("unit", oneOf("user")) === "user";
  const task: Task = {
    id: await digest("task", fields.raw),
    origin: fields.get("origin", origin),
    name: fields.get("name", text(1, 200)),
    helpers: fields.get("helpers", pair(readHelper)),
    numFeatures: fields.get("num_features", integer(1, 65_536)),
    labels: fields.get("labels", readLabels),
    numCandidates,
    fakeReportRate: fields.get(
      "fake_report_rate",
      float((rate) => rate >= 0 && rate < 1),
    ),
    featureEpsilon: fields.get("feature_epsilon", nullable(float((epsilon) => epsilon > 0 && epsilon <= 1e6))),
    timeBucketS: fields.get("time_bucket_s", integer(1, 31 * 86_400)),
    startsAt: fields.get("starts_at", integer(0, LATEST)),
    expiresAt: fields.get("expires_at", integer(0, LATEST)),
    measurement: fields.get("measurement", nullable(readMeasurement)),
    reportsPerUser: fields.has("reports_per_user") ? fields.get("reports_per_user", integer(2, 1024)) : 1,
    isPerUser,
    hasProof: fields.has("proof") && fields.get("proof", boolean),
    encoder: fields.has("encoder") ? fields.get("encoder", bytes(32, 32)) : null,
  };
  must(!fields.has("proof") || task.hasProof, "proof is written where it is true");
  must(isPerUser || task.reportsPerUser === 1, "reports_per_user goes with unit user");
  checkSums(fields, task);
  return { task, raw: fields.raw };
}

/** The settings that only helpers and ad server use. They are checked all the same: a task is whole or refused. */
function checkSums(fields: Fields, task: Task): void {
  const budget = float((epsilon) => epsilon > 0 && epsilon <= 1e6);
  fields.get("salt", bytes(16, 16));
  fields.get("epsilon", budget);
  fields.get("collusion_epsilon", budget);
  fields.get(
    "delta",
    float((delta) => delta > 0 && delta < 1),
  );
  fields.get(
    "clip_norm",
    float((bound) => bound >= 2 ** -10 && bound <= 2 ** 10),
  );
  fields.get("frac_bits", integer(16, 40));
  const mechanism = fields.get("mechanism", oneOf("laplace", "gaussian", "none"));
  const norm = fields.get("norm", oneOf("l1", "l2"));
  const noise = fields.get("noise", oneOf("full", "split"));
  const least = fields.get("min_batch_size", integer(1, 2 ** 30));
  const most = fields.get("max_dataset_size", integer(1, 33_000_000));
  const [first, second] = task.helpers;
  must(mechanism === "none" || (mechanism === "laplace") === (norm === "l1"), "Laplace noise goes with norm l1");
  must(noise === "full" || mechanism === "gaussian", "noise split goes with mechanism gaussian");
  must(task.numCandidates <= task.labels.reachable.length, "num_decoys is at most the number of other labels");
  must(
    !equal(first.agreementKey, second.agreementKey) && !equal(first.verifyKey, second.verifyKey),
    "the two helpers have different keys",
  );
  must(task.expiresAt > task.startsAt, "expires_at is after starts_at");
  must(least <= most, "min_batch_size is at most max_dataset_size");
}

/** For a caller that holds a bundle for long: whether its key lists are still to be sealed by. */
export function checkFresh(bundle: Bundle, unixS: number): void {
  if (unixS > bundle.notAfter) throw invalidTask("a helper's list of HPKE keys is over: fetch the bundle again");
}
