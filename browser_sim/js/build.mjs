// Bundles src/ into dist/. The same sources and package-lock.json give the same bytes on every machine.
//   node build.mjs            writes dist/
//   node build.mjs --out DIR  writes elsewhere, to compare
import { rmSync } from "node:fs";
import { build } from "esbuild";

const at = process.argv.indexOf("--out");
const outdir = at === -1 ? "dist" : process.argv[at + 1];
rmSync(outdir, { recursive: true, force: true });
const common = {
  outdir,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
};
await build({
  ...common,
  entryPoints: { core: "src/core/index.ts", encoder: "src/core/encoder.ts", stub: "src/stub.ts", vault: "src/vault.ts" },
  splitting: true,
  chunkNames: "[name]-[hash]",
});
// A service worker may import nothing later: all of it is one file.
await build({ ...common, entryPoints: { worker: "src/worker.ts" } });
