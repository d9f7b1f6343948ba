// What advertisers' and publishers' pages load: it puts the vault's frame into the page and passes calls to it.

import type { Kind } from "./core/errors.ts";
import type { ConversionOptions, ImpressionOptions, OpenOptions, Reply } from "./vault/messages.ts";

export interface Lark {
  /** False without consent, or under Global Privacy Control: then nothing is kept, and calls do nothing. */
  readonly isActive: boolean;
  saveImpression(options: ImpressionOptions): Promise<void>;
  /** Never tells whether anything matched. */
  measureConversion(options: ConversionOptions): Promise<void>;
  withdraw(): Promise<void>;
}

/** Opens a task in the vault at a URL. */
export async function open(vault: string, options: OpenOptions): Promise<Lark> {
  const port = await connect(vault);
  const waiting = new Map<number, [(result: string | null) => void, (error: Error) => void]>();
  let last = 0;
  port.onmessage = ({ data }: MessageEvent<Reply>) => {
    const [resolve, reject] = waiting.get(data.id) ?? [];
    waiting.delete(data.id);
    if ("error" in data) reject?.(failure(data.error));
    else resolve?.(data.result);
  };
  const ask = (call: string, rest: object): Promise<string | null> =>
    new Promise((resolve, reject) => {
      waiting.set(++last, [resolve, reject]);
      port.postMessage({ id: last, call, ...rest });
    });
  const task = await ask("open", { options });
  const tell = async (call: string, given?: object): Promise<void> => {
    if (task !== null) await ask(call, { task, options: given });
  };
  return {
    isActive: task !== null,
    saveImpression: (given) => tell("saveImpression", given),
    measureConversion: (given) => tell("measureConversion", given),
    withdraw: () => tell("withdraw"),
  };
}

/** An error whose name is its kind. */
function failure({ kind, message }: { readonly kind: Kind; readonly message: string }): Error {
  return Object.assign(new Error(message), { name: kind });
}

const PATIENCE_MS = 60_000;

/** A port to the vault, once it says that it listens. */
function connect(vault: string): Promise<MessagePort> {
  const frame = document.createElement("iframe");
  frame.src = vault;
  frame.hidden = true;
  frame.referrerPolicy = "origin";
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve, reject) => {
    addEventListener("message", function listens({ data, source, origin }) {
      if (data !== "maskedlark" || source !== frame.contentWindow || origin !== new URL(frame.src).origin) return;
      removeEventListener("message", listens);
      frame.contentWindow?.postMessage("maskedlark", origin, [port2]);
    });
    port1.onmessage = () => resolve(port1);
    const message = `the vault does not answer: are its page and its scripts served, and does it name ${location.origin}?`;
    setTimeout(() => reject(failure({ kind: "Unavailable", message })), PATIENCE_MS);
    document.documentElement.append(frame);
  });
}
