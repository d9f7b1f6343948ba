// From one example to two plaintexts, each alone independent of the label and the values: maskedlark/reports/report.py

import { type Bytes, concat, littleEndian } from "./bytes.ts";
import { invalidExample } from "./errors.ts";
import { randomVector, subtract, toBytes } from "./field.ts";
import { candidates } from "./labels.ts";
import { noisedBytes } from "./laplace.ts";
import { keyCodes, type Measured, numColumns, valueColumns } from "./measurement.ts";
import { type Prover } from "./proof.ts";
import { type Randomness } from "./randomness.ts";
import { reduced } from "./field.ts";
import { type Task } from "./task.ts";

const SHARE_VERSION = 1;
const PROVEN_SHARE_VERSION = 2;
const VIEW_NONCE_BYTES = 16;

export interface Example {
  readonly features: Uint8Array;
  /** A class, or a real value for a label space of values; null makes a fake report. */
  readonly label: number | null;
  readonly measured?: Measured | null;
}

/** The two plaintexts of one report, by role. */
export async function split(
  task: Task,
  prover: Prover | null,
  example: Example,
  reportId: Bytes,
  randomness: Randomness,
): Promise<readonly [Bytes, Bytes]> {
  checkFeatures(task, example.features);
  const features =
    task.featureEpsilon === null
      ? example.features
      : noisedBytes(example.features, task.featureEpsilon, randomness);
  const { labels, mask } = candidates(task.labels, task.numCandidates, example.label, randomness);
  const { keys, columns } = measuredOf(task, example);
  const viewOf = (version: number, nonce: Bytes): Bytes =>
    concat(Uint8Array.of(version), nonce, features, ...labels.map(u32), ...keys.map(u32));

  if (prover !== null) {
    const view = viewOf(PROVEN_SHARE_VERSION, randomness(VIEW_NONCE_BYTES));
    return prover.plaintexts({ taskId: task.id, reportId, view }, mask, columns, randomness);
  }
  const isReal = example.label !== null;
  const [masks0, masks1] = shared(mask, randomness);
  const [values0, values1] = shared(
    columns.map((column) => (isReal ? reduced(BigInt(column)) : 0n)),
    randomness,
  );
  const view = viewOf(SHARE_VERSION, randomness(VIEW_NONCE_BYTES));
  return [concat(view, masks0, values0), concat(view, masks1, values1)];
}

export function checkFeatures(task: Task, features: Uint8Array): void {
  if (features.length !== task.numFeatures) {
    throw invalidExample(`the task takes ${task.numFeatures} feature bytes, not ${features.length}`);
  }
}

/** The codes, and the columns of a real report; of a fake one, as many columns, which nothing looks at. */
export function measuredOf(task: Task, example: Example): { keys: number[]; columns: number[] } {
  const measured = example.measured ?? null;
  if ((task.measurement === null) !== (measured === null)) {
    throw invalidExample("an example holds keys and values if, and only if, the task has a measurement");
  }
  if (task.measurement === null || measured === null) return { keys: [], columns: [] };
  const keys = keyCodes(task.measurement, measured);
  const columns =
    example.label === null
      ? Array.from({ length: numColumns(task.measurement) }, () => 0)
      : valueColumns(task.measurement, measured);
  return { keys, columns };
}

function u32(value: number): Bytes {
  return littleEndian(value, 4);
}

function shared(secret: readonly bigint[], randomness: Randomness): readonly [Bytes, Bytes] {
  const share0 = randomVector(secret.length, randomness);
  return [toBytes(share0), toBytes(subtract(secret, share0))];
}
