"""What every answer over HTTP says to a browser's page: pages of any origin may read it.

The intake sets and reads no cookie, so there is nothing that another origin's page could misuse. A report is
posted without a header that a form could not send, so no preflight is needed either. The headers stand on all
answers, also on those that are written before a request reached the application: a page that cannot read a
503 cannot know when to retry.
"""

from typing import Final

HEADERS: Final = (
    ("access-control-allow-origin", "*"),
    ("access-control-expose-headers", "etag, retry-after"),
    ("cross-origin-resource-policy", "cross-origin"),
    ("x-content-type-options", "nosniff"),
)
