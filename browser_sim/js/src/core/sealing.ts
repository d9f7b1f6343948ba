// HPKE (RFC 9180) base mode, one shot, to one helper. What a share must not be moved away from is bound in `info`.
// The suites with ChaCha or the hybrid need more code: it is loaded when a task first asks for it.

import * as hpke from "hpke";

import { ascii, type Bytes, concat, littleEndian } from "./bytes.ts";
import { invalidTask } from "./errors.ts";
import { type HpkeKey, type Suite } from "./task.ts";

export interface ShareBinding {
  readonly taskId: Bytes;
  readonly reportId: Bytes;
  readonly timeBucket: number;
  readonly role: 0 | 1;
  readonly keyId: number;
}

export type Seal = (plaintext: Bytes, info: Bytes) => Promise<Bytes>;

export function shareInfo(binding: ShareBinding): Bytes {
  return concat(
    ascii("maskedlark/v1 input share\0"),
    binding.taskId,
    binding.reportId,
    littleEndian(binding.timeBucket, 8),
    Uint8Array.of(binding.role, binding.keyId),
  );
}

/** Seals to one public key; each sealing has an ephemeral key of its own. */
export async function sealerTo(key: HpkeKey): Promise<Seal> {
  const suite = await cipherSuite(key.suite);
  let publicKey: hpke.Key;
  try {
    publicKey = await suite.DeserializePublicKey(key.publicKey);
  } catch {
    throw invalidTask(`HPKE key ${key.keyId} is no key`);
  }
  return async (plaintext, info) => {
    try {
      const sealed = await suite.Seal(publicKey, plaintext, { info });
      return concat(sealed.encapsulatedSecret, sealed.ciphertext);
    } catch {
      throw invalidTask(`HPKE key ${key.keyId} is of low order: it protects nothing`);
    }
  };
}

async function cipherSuite(suite: Suite): Promise<hpke.CipherSuite> {
  if (suite === "x25519-aes128gcm") {
    return new hpke.CipherSuite(hpke.KEM_DHKEM_X25519_HKDF_SHA256, hpke.KDF_HKDF_SHA256, hpke.AEAD_AES_128_GCM);
  }
  const { chacha20Poly1305, mlkem768X25519 } = await import("../further_suites.ts");
  const kem = suite.startsWith("mlkem768") ? mlkem768X25519 : hpke.KEM_DHKEM_X25519_HKDF_SHA256;
  const aead = suite.endsWith("chacha20poly1305") ? chacha20Poly1305 : hpke.AEAD_AES_128_GCM;
  return new hpke.CipherSuite(kem, hpke.KDF_HKDF_SHA256, aead);
}
