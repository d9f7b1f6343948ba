"""A page that speaks the vault's messages itself: a hostile one need not load the stub."""

from collections.abc import Sequence
from typing import Any, Final

from playwright.sync_api import Page

from tests.browser_sim.js.site import Site

_CONNECT: Final = """
async (vault) => {
  const frame = document.createElement("iframe"), { port1, port2 } = new MessageChannel();
  const listens = new Promise((resolve) => {
    addEventListener("message", ({ data, source }) => {
      if (data === "maskedlark" && source === frame.contentWindow) resolve();
    });
  });
  frame.src = vault;
  document.body.append(frame);
  await listens;
  const ready = new Promise((resolve) => { port1.onmessage = resolve; });
  frame.contentWindow.postMessage("maskedlark", "*", [port2]);
  await ready;
  window.raw = port1;
}
"""
_SEND: Final = """
async ([count, make]) => {
  const replies = new Map();
  const all = new Promise((resolve) => {
    raw.onmessage = ({ data }) => {
      replies.set(data.id, data.error ? data.error.kind : data.result);
      if (replies.size === count) resolve();
    };
  });
  const messageOf = eval(make);
  for (let id = 0; id < count; id++) {
    const message = messageOf(id);
    raw.postMessage(typeof message === "object" && message !== null ? { id, ...message } : message);
  }
  await all;
  return [...replies.values()];
}
"""


class RawPort:
    """A port to a vault from a page of a site."""

    def __init__(self, page: Page, site: Site, vault: str) -> None:
        page.goto(site.origin)
        page.evaluate(_CONNECT, vault)
        self._page = page

    def call(self, call: str, **message: Any) -> Any:
        """Send one message; return its result, or the kind of its error."""
        return self.send([{"call": call, **message}])[0]

    def send(self, messages: Sequence[Any]) -> list[Any]:
        """Send messages at once; return what each is answered, in the order of the answers."""
        self._page.evaluate("(messages) => { window.messages = messages; }", list(messages))
        return self.send_made(len(messages), "(id) => messages[id]")

    def send_made(self, count: int, make: str) -> list[Any]:
        """Send what a function of the id, in JavaScript, makes."""
        replies: list[Any] = self._page.evaluate(_SEND, [count, make])
        return replies

    def send_unanswered(self, make: str) -> None:
        """Send messages to which no answer is due."""
        self._page.evaluate("(make) => { for (const one of eval(make)) raw.postMessage(one); }", make)
