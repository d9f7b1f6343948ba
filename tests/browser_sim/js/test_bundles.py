"""Bundles that were changed in any way are refused, in Chromium; and what Python refuses is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from maskedlark.canonical import encode
from maskedlark.reports.sealing import SignedKeyList
from tests.browser_sim.js.site import Site
from tests.builders import FAR, HelperKeys, bundle, helper_keys, world
from tests.update_builders import update_world
from tests.vectors.browser.generate import FILE

MUTATIONS = 10_000
MUTATE = """
async ({ bundles, mutations, seed }) => {
  const core = await import("/dist/core.js");
  const stream = core.replayed(await core.keyStream(core.fromHex(seed), 64 * mutations));
  const below = (bound) => new DataView(stream(4).buffer).getUint32(0) % bound;
  const splice = (bytes, at, remove, put) =>
    Uint8Array.from([...bytes.slice(0, at), ...put, ...bytes.slice(at + remove)]);
  const ways = [
    (b) => splice(b, below(b.length), 1, [below(256)]),
    (b) => splice(b, below(b.length), 1 + below(3), []),
    (b) => splice(b, below(b.length + 1), 0, [below(256)]),
    (b) => { const at = below(b.length - 8); return splice(b, at, 0, b.slice(at, at + 1 + below(8))); },
    (b) => { const at = below(b.length - 1); return splice(b, at, 2, [b[at + 1], b[at]]); },
    (b) => splice(b, below(b.length), 1, [[32, 9, 10, 34, 92, 44, 48, 45, 46, 101][below(10)]]),
    (b) => { // a digit written in capitals, a zero before or behind a number
      const text = new TextDecoder().decode(b);
      const found = [...text.matchAll(/[a-f](?=[0-9a-f]{4})|[0-9](?=[,}])/g)];
      const { index, 0: sign } = found[below(found.length)];
      const spelled = /[a-f]/.test(sign) ? sign.toUpperCase() : sign + "0";
      return splice(b, index, 1, new TextEncoder().encode(spelled));
    },
    (b) => b.slice(0, below(b.length)),
  ];
  let accepted = 0, refused = 0;
  const kinds = new Set();
  while (accepted + refused < mutations) {
    const { encoded, trusted } = bundles[below(bundles.length)];
    const original = core.fromHex(encoded), changed = ways[below(ways.length)](original);
    if (core.toHex(changed) === encoded) continue;
    try { await core.openBundle(changed, trusted.map(core.fromHex)); accepted += 1; }
    catch (error) { refused += 1; kinds.add(error.kind ?? String(error)); }
  }
  return { accepted, refused, kinds: [...kinds].sort() };
}
"""
OPEN = """
async ({ encoded, trusted }) => {
  const core = await import("/dist/core.js");
  try { await core.openBundle(core.fromHex(encoded), trusted.map(core.fromHex)); return null; }
  catch (error) { return { kind: error.kind, message: error.message }; }
}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site({"/": "<!doctype html><title>bundles</title>"}) as served:
        yield served


def test_of_ten_thousand_changed_bundles_none_is_accepted(site: Site, page: Page) -> None:
    known = json.loads(FILE.read_text())["bundles"]
    page.goto(site.origin)
    page.set_default_timeout(0)
    bundles = [{"encoded": one["bundle"], "trusted": one["trusted"]} for one in known.values()]
    result = page.evaluate(MUTATE, {"bundles": bundles, "mutations": MUTATIONS, "seed": "07" * 32})
    assert result["accepted"] == 0
    assert result["refused"] == MUTATIONS
    assert set(result["kinds"]) <= {"InvalidTask", "UnsupportedTask"}


def opened(site: Site, page: Page, encoded: bytes, keys: tuple[HelperKeys, HelperKeys]) -> Any:
    page.goto(site.origin)
    trusted = [one.signing.public_key().public_bytes_raw().hex() for one in keys]
    return page.evaluate(OPEN, {"encoded": encoded.hex(), "trusted": trusted})


def test_a_bundle_as_it_should_be_is_opened(site: Site, page: Page) -> None:
    of = world()
    assert opened(site, page, encode(of.bundle), of.keys) is None


def test_a_helper_that_the_page_does_not_trust_is_refused(site: Site, page: Page) -> None:
    of, other = world(), helper_keys()
    refused = opened(site, page, encode(of.bundle), (of.keys[0], other))
    assert refused["kind"] == "InvalidTask"
    assert "not one that this page trusts" in refused["message"]


def test_a_key_list_of_the_other_helper_is_refused(site: Site, page: Page) -> None:
    of = world()
    swapped = bundle(of.task, of.keys)
    lists = (swapped.key_lists[1], swapped.key_lists[0])
    encoded = encode(type(swapped)(task=swapped.task, signatures=swapped.signatures, key_lists=lists))
    assert opened(site, page, encoded, of.keys)["kind"] == "InvalidTask"


def test_a_task_of_updates_is_refused_as_one_of_another_form(site: Site, page: Page) -> None:
    of = update_world()
    assert opened(site, page, encode(of.bundle), of.keys)["kind"] == "UnsupportedTask"


@pytest.mark.parametrize(
    ("name", "replaced", "by"),
    [
        ("an unknown field", b'"collusion_epsilon"', b'"clip_norn":1,"collusion_epsilon"'),
        ("no decoys", b'"num_decoys":1', b'"num_decoys":0'),
        ("more candidates than labels", b'"num_decoys":1', b'"num_decoys":5'),
        ("laplace with l2", b'"mechanism":"none"', b'"mechanism":"laplace"'),
        ("a whole number for a float", b'"epsilon":8.0', b'"epsilon":8'),
        ("a default that is written", b'"salt"', b'"proof":false,"salt"'),
        ("a period that ends before it starts", b'"expires_at":1802592000', b'"expires_at":1'),
        ("an origin of two hosts", b'"https://ads.example"', b'"https://ads.example\\\\@rival.example"'),
        ("an origin with a user", b'"https://ads.example"', b'"https://ads.example@rival.example"'),
        ("an origin with a path", b'"https://ads.example"', b'"https://ads.example/"'),
        ("an origin in capitals", b'"https://ads.example"', b'"https://Ads.example"'),
        ("an origin with its default port", b'"https://ads.example"', b'"https://ads.example:443"'),
        ("an origin that is no site's", b'"https://ads.example"', b'"data:text/html,ads"'),
    ],
)
def test_a_signed_task_that_python_would_refuse_is_refused(
    site: Site, page: Page, name: str, replaced: bytes, by: bytes
) -> None:
    refusal = opened_when_changed(site, page, name, replaced, by)
    assert refusal["kind"] == "InvalidTask"
    assert "canonical spelling" not in refusal["message"]  # fields out of order: no rule would be tried


@pytest.mark.parametrize(
    ("by", "behind"),
    [
        (b'"version":2', "this client"),
        (b'"version":2,"zeta":1', "this client"),
        (b'"version":0', "the party"),
    ],
)
def test_a_task_of_another_version_says_what_to_upgrade(
    site: Site, page: Page, by: bytes, behind: str
) -> None:
    refused = opened_when_changed(site, page, "another version", b'"version":1', by)
    assert refused["kind"] == "UnsupportedTask"
    assert f"upgrade {behind}" in refused["message"]


def opened_when_changed(site: Site, page: Page, name: str, replaced: bytes, by: bytes) -> Any:
    """What a page makes of a bundle whose task was changed and then signed."""
    keys = helper_keys(1), helper_keys(2)
    of = world(keys=keys)
    good = encode(of.bundle.task)
    task = good.replace(replaced, by, 1)
    assert task != good, name
    domain = of.task.signing_bytes().removesuffix(good)
    signatures = [one.signing.sign(domain + task).hex() for one in keys]
    lists = [SignedKeyList.sign(one.signing, (one.opening.public(),), not_after=FAR) for one in keys]
    encoded = b'{"key_lists":[%s],"signatures":%s,"task":%s}' % (
        b",".join(map(encode, lists)),
        json.dumps(signatures, separators=(",", ":")).encode(),
        task,
    )
    return opened(site, page, encoded, keys)


def test_a_task_of_today_spelled_by_hand_is_opened(site: Site, page: Page) -> None:
    """The refusals above are of the changes, not of how the test spells a bundle."""
    of = world()
    signatures = [one.signing.sign(of.task.signing_bytes()).hex() for one in of.keys]
    encoded = b'{"key_lists":[%s],"signatures":%s,"task":%s}' % (
        b",".join(map(encode, of.bundle.key_lists)),
        json.dumps(signatures, separators=(",", ":")).encode(),
        encode(of.task),
    )
    assert encoded == encode(of.bundle)
    assert opened(site, page, encoded, of.keys) is None
