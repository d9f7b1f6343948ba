"""The page of a browser that is not logged in: whole in itself, since the dashboard's files need a login."""

from base64 import b64encode
from hashlib import sha256
from typing import Final

# The colours of the dashboard
_STYLE: Final = """
:root { color-scheme: light dark;
  --bg: #f6f6f3; --card: #fff; --ink: #1b2124; --line: #e2e3de; --accent: #0c6464; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #121517; --card: #1a1e21; --ink: #e7eaec; --line: #2c3237; --accent: #6fcdc5; }
}
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 34rem; margin: 12vh auto 0; padding: 1.1rem 1.5rem; box-sizing: border-box;
  border: 1px solid var(--line); border-radius: 12px; background: var(--card); }
h1 { margin: 0 0 1rem; font-size: 1.55rem; font-weight: 650; }
a { color: var(--accent); }
code { padding: 0.1em 0.35em; border-radius: 5px; background: var(--bg); overflow-wrap: anywhere; }
"""
STYLE_SOURCE: Final = f"'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'"
"""This style and no other inline one, for the content security policy."""
_PAGE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width">{head}<title>{title} · Masked LARk</title>
<style>{style}</style></head>
<body><main><h1>Masked LARk</h1>
{body}
</main></body></html>
"""


def stranger_page(title: str, *paragraphs: str, head: str = "") -> str:
    """Return a page with these paragraphs of HTML, in light or dark as the browser prefers."""
    body = "\n".join(f"<p>{one}</p>" for one in paragraphs)
    return _PAGE.format(title=title, body=body, head=head, style=_STYLE)
