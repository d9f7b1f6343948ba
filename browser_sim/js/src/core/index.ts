// The client's pure core: no storage, no network, no page.
export { fromHex, toHex } from "./bytes.ts";
export { MaskedLarkError } from "./errors.ts";
export { discreteLaplace, noisedBytes } from "./laplace.ts";
export { candidates } from "./labels.ts";
export { keyStream, replayed, systemRandomness } from "./randomness.ts";
export type { Example } from "./report.ts";
export { Sealer } from "./sealer.ts";
export { shareInfo } from "./sealing.ts";
export { type Bundle, openBundle, type Task, timeBucket } from "./task.ts";
export { encodeBatch, encodeReport } from "./wire.ts";
