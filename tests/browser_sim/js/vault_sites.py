"""A publisher, an advertiser and a vault on three origins, for tests of the whole client."""

import json
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Frame, Page

from tests.browser_sim.js.site import Site

PAGE: Final = "<!doctype html><title>{name}</title><h1>{name}</h1>"
VAULT: Final = """<!doctype html><title>vault</title><script type="module">
import {{ serveVault }} from "/dist/vault.js";
window.engine = serveVault({options});
</script>"""
OPEN: Final = """
async ({ stub, vault, options }) => {
  const { open } = await import(stub);
  window.lark = await open(vault, options);
  return window.lark.isActive;
}
"""


KEPT: Final = """
async () => {
  const opening = indexedDB.open("maskedlark");
  const done = (request) => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  const database = await done(opening), counts = {};
  for (const name of database.objectStoreNames) {
    if (name !== "made") counts[name] = await done(database.transaction(name).objectStore(name).count());
  }
  database.close();
  return counts;
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """The three sites."""

    publisher: Site
    advertiser: Site
    vault: Site

    def open(self, page: Page, site: Site, **options: Any) -> bool:
        """Go to a site's page, and open a task in the vault from there; whether it is active."""
        page.goto(site.origin)
        stub, vault = f"{site.origin}/dist/stub.js", f"{self.vault.origin}/vault.html"
        active: bool = page.evaluate(OPEN, {"stub": stub, "vault": vault, "options": options})
        return active

    @property
    def seen(self) -> list[Any]:
        return [seen for site in (self.publisher, self.advertiser, self.vault) for seen in site.seen]


@contextmanager
def three_sites(
    *, intake: str, trusted: Sequence[str], tls: ssl.SSLContext | None = None, **vault_options: Any
) -> Iterator[Sites]:
    """Run the sites; the vault sends to `intake`, at once, and serves the pages of the other two only."""
    with ExitStack() as running:
        publisher, advertiser = (
            running.enter_context(Site({"/": PAGE.format(name=name)}, tls=tls))
            for name in ("publisher", "advertiser")
        )
        options = {
            "intake": intake,
            "origins": [publisher.origin, advertiser.origin],
            "trustedHelpers": list(trusted),
            "leastDelayS": 0,
            **vault_options,
        }
        page = VAULT.format(options=json.dumps(options))
        vault = running.enter_context(Site({"/vault.html": page}, tls=tls))
        yield Sites(publisher=publisher, advertiser=advertiser, vault=vault)


def rows_kept(frame: Frame) -> int:
    """How many rows of reports, made or to be made, the vault in a frame still holds."""
    return sum(count for name, count in kept(frame).items() if name != "tasks")


def kept(frame: Frame) -> dict[str, int]:
    """How many rows each of the vault's stores holds."""
    counts: dict[str, int] = frame.evaluate(KEPT)
    return counts


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS of a site with these files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
