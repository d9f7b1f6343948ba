// The one call by which a page makes a report: maskedlark/reports/upload.py

import { type Bytes } from "./bytes.ts";
import { Prover } from "./proof.ts";
import { type Randomness, systemRandomness } from "./randomness.ts";
import { type Example, split } from "./report.ts";
import { type Seal, sealerTo, shareInfo } from "./sealing.ts";
import { type Bundle, checkFresh, type Task, timeBucket } from "./task.ts";
import { encodeReport, type SealedShare } from "./wire.ts";

const REPORT_ID_BYTES = 16;

/** Makes the reports of one task; its bundle was checked when it was opened. */
export class Sealer {
  readonly task: Task;
  readonly #bundle: Bundle;
  readonly #seals: readonly [Seal, Seal];
  readonly #prover: Prover | null;

  private constructor(bundle: Bundle, seals: readonly [Seal, Seal]) {
    this.task = bundle.task;
    this.#bundle = bundle;
    this.#seals = seals;
    this.#prover = bundle.task.hasProof ? new Prover(bundle.task.measurement) : null;
  }

  static async of(bundle: Bundle): Promise<Sealer> {
    return new Sealer(bundle, [await sealerTo(bundle.keys[0]), await sealerTo(bundle.keys[1])]);
  }

  /**
   * Split an example and seal each share to its helper.
   *
   * @param unixS When the report is uploaded, not when the event happened: only its time bucket is sent.
   * @returns The upload's bytes.
   * @throws MaskedLarkError InvalidExample, or InvalidTask where the helpers' key lists are over.
   */
  async report(example: Example, unixS: number, randomness: Randomness = systemRandomness): Promise<Bytes> {
    checkFresh(this.#bundle, unixS);
    const bucket = timeBucket(this.task, unixS);
    const reportId = randomness(REPORT_ID_BYTES);
    const plaintexts = await this.plaintexts(example, reportId, randomness);
    const seal = async (role: 0 | 1): Promise<SealedShare> => {
      const keyId = this.#bundle.keys[role].keyId;
      const info = shareInfo({ taskId: this.task.id, reportId, timeBucket: bucket, role, keyId });
      return { keyId, ciphertext: await this.#seals[role](plaintexts[role], info) };
    };
    const shares = await Promise.all([seal(0), seal(1)]);
    return encodeReport({ taskId: this.task.id, reportId, timeBucket: bucket, shares });
  }

  /** Both helpers' plaintexts of one report; for vectors, and for pages that show what each party sees. */
  async plaintexts(example: Example, reportId: Bytes, randomness: Randomness): Promise<readonly [Bytes, Bytes]> {
    return split(this.task, this.#prover, example, reportId, randomness);
  }
}
