// Bundles src/ into dist/. The same sources and package-lock.json give the same bytes on every machine.
//   node build.mjs            writes dist/
//   node build.mjs --out DIR  writes elsewhere, to compare
import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
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
  metafile: true,
};
const parted = await build({
  ...common,
  entryPoints: { core: "src/core/index.ts", encoder: "src/core/encoder.ts", stub: "src/stub.ts", vault: "src/vault.ts" },
  splitting: true,
  chunkNames: "[name]-[hash]",
});
// A service worker may import nothing later: all of it is one file.
const whole = await build({ ...common, entryPoints: { worker: "src/worker.ts" } });

// The licence of each package whose code is in a bundle: both ask that it goes along.
const bundled = new Set();
for (const input of [parted, whole].flatMap((one) => Object.keys(one.metafile.inputs))) {
  const found = /^.*node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(input);
  if (found) bundled.add(found[0]);
}
const licences = [...bundled].sort().map((folder) => {
  const { name, version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  return `${name} ${version}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
});
writeFileSync(join(outdir, "LICENSES.txt"), licences.join("\n\n"));
