// The vault's service worker: goes on sending what is due when the browser wakes it, with no page open.

import { Engine } from "./vault/engine.ts";
import { Store } from "./vault/store.ts";

export * from "./core/index.ts";

declare const self: ServiceWorkerGlobalScope & { readonly location: WorkerLocation };

const intake = new URL(self.location.href).searchParams.get("intake") ?? self.location.origin;

async function turn(): Promise<void> {
  const store = await Store.open();
  const engine = new Engine({ store, intake });
  try {
    await engine.run();
  } finally {
    engine.stop();
    store.close();
  }
}

self.addEventListener("install", () => void self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
for (const wake of ["sync", "periodicsync"]) {
  self.addEventListener(wake, (event) => (event as ExtendableEvent).waitUntil(turn()));
}
self.addEventListener("message", (event) => event.waitUntil(turn()));
