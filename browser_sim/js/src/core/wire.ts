// The upload's bytes: protos/report.proto, spelled as protobuf's own writers spell it (zeros left out).

import { type Bytes, concat } from "./bytes.ts";

export interface SealedShare {
  readonly keyId: number;
  readonly ciphertext: Bytes;
}

export interface Report {
  readonly taskId: Bytes;
  readonly reportId: Bytes;
  readonly timeBucket: number;
  readonly shares: readonly [SealedShare, SealedShare];
}

export function encodeReport(report: Report): Bytes {
  return concat(
    lengthDelimited(1, report.taskId),
    lengthDelimited(2, report.reportId),
    unsigned(3, report.timeBucket),
    lengthDelimited(4, encodeShare(report.shares[0])),
    lengthDelimited(5, encodeShare(report.shares[1])),
  );
}

/** A ReportBatch of reports that are encoded already. */
export function encodeBatch(reports: readonly Bytes[]): Bytes {
  return concat(...reports.map((report) => lengthDelimited(1, report)));
}

function encodeShare(share: SealedShare): Bytes {
  return concat(unsigned(1, share.keyId), lengthDelimited(2, share.ciphertext));
}

function unsigned(field: number, value: number): Bytes {
  return value === 0 ? new Uint8Array() : concat(varint(field << 3), varint(value));
}

function lengthDelimited(field: number, bytes: Bytes): Bytes {
  return concat(varint((field << 3) | 2), varint(bytes.length), bytes);
}

function varint(value: number): Bytes {
  const bytes: number[] = [];
  let rest = value;
  while (rest >= 128) {
    bytes.push((rest % 128) + 128);
    rest = Math.floor(rest / 128);
  }
  return Uint8Array.of(...bytes, rest);
}
