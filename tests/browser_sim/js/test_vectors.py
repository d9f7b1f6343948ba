"""The client in JavaScript makes, in a real page and in a service worker, what Python makes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser_sim.js.site import Site
from tests.vectors.browser.generate import FILE, TASKS, vectors

RUN = """
export async function run(core, vectors) {
  const sealers = {};
  for (const [name, one] of Object.entries(vectors.bundles)) {
    const bundle = await core.openBundle(core.fromHex(one.bundle), one.trusted.map(core.fromHex));
    if (core.toHex(bundle.task.id) !== one.task_id) throw new Error(`task id of ${name}`);
    sealers[name] = await core.Sealer.of(bundle);
  }
  let cases = 0;
  const differing = [];
  for (const one of vectors.cases) {
    const sealer = sealers[one.task];
    const draws = core.replayed(await core.keyStream(core.fromHex(one.stream_key), 200_000));
    const reportId = draws(16);
    const example = { features: core.fromHex(one.features), label: one.label, measured: one.measured };
    const plaintexts = await sealer.plaintexts(example, reportId, draws);
    const timeBucket = core.timeBucket(sealer.task, one.unix_s);
    const shares = await Promise.all(plaintexts.map(async (plaintext, role) => {
      const key = vectors.bundles[one.task].keys[role];
      const seed = new Uint8Array(await crypto.subtle.digest("SHA-256", plaintext));
      return { keyId: key.key_id, ciphertext: await core.keyStream(seed, plaintext.length + key.overhead) };
    }));
    const upload = core.encodeReport({ taskId: sealer.task.id, reportId, timeBucket, shares });
    const made = {
      report_id: core.toHex(reportId),
      time_bucket: timeBucket,
      plaintexts: plaintexts.map(core.toHex),
      upload_sha256: core.toHex(new Uint8Array(await crypto.subtle.digest("SHA-256", upload))),
    };
    for (const [name, value] of Object.entries(made)) {
      if (JSON.stringify(value) !== JSON.stringify(one[name])) differing.push(`${one.task}: ${name}`);
    }
    cases += 1;
  }
  for (const one of vectors.laplace) {
    const drawn = core.discreteLaplace(one.scale, one.values.length, core.replayed(core.fromHex(one.stream)));
    if (drawn.some((value, at) => value !== one.values[at])) differing.push(`noise of scale ${one.scale}`);
  }
  return { cases, differing };
}
"""
WORKER = """
import * as core from "/dist/worker.js";
import { run } from "/run.js";
addEventListener("message", (event) => {
  event.waitUntil(run(core, event.data).then(
    (result) => event.source.postMessage(result),
    (error) => event.source.postMessage({ cases: 0, differing: [String(error)] }),
  ));
});
addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
"""
IN_WORKER = """
async (vectors) => {
  const registered = await navigator.serviceWorker.register("/vectors_worker.js", { type: "module" });
  await navigator.serviceWorker.ready;
  const answer = new Promise((resolve) => {
    navigator.serviceWorker.onmessage = (event) => resolve(event.data);
  });
  registered.active.postMessage(vectors);
  return answer;
}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    pages = {"/": "<!doctype html><title>vectors</title>", "/run.js": RUN, "/vectors_worker.js": WORKER}
    with Site(pages) as served:
        yield served


@pytest.fixture(scope="module")
def known() -> Any:
    return json.loads(FILE.read_text())


def test_the_vectors_are_what_python_makes_today(known: Any) -> None:
    assert known == json.loads(json.dumps(vectors()))


def test_there_are_ten_vectors_of_each_form_of_a_task(known: Any) -> None:
    assert len(known["cases"]) == 10 * len(TASKS)
    assert sum(case["label"] is None for case in known["cases"]) == 2 * len(TASKS)


def test_a_page_makes_what_python_makes(site: Site, page: Page, known: Any) -> None:
    page.goto(site.origin)
    result = page.evaluate(
        "async (vectors) => (await import('/run.js')).run(await import('/dist/core.js'), vectors)", known
    )
    assert result == {"cases": len(known["cases"]), "differing": []}


def test_a_service_worker_makes_what_python_makes(site: Site, page: Page, known: Any) -> None:
    page.goto(site.origin)
    assert page.evaluate(IN_WORKER, known) == {"cases": len(known["cases"]), "differing": []}
