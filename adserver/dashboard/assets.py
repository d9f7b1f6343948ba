"""The files that pages load: read once, named by what they hold, so that a browser keeps them for good."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from adserver.admin.problems import problem

FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# A file's URL has a tag of its content: what changes has another URL
_FOREVER: Final = {"cache-control": "private, max-age=31536000, immutable"}


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    media_type: str
    tag: str


class _Assets:
    """The static files of a folder."""

    def __init__(self, folder: Path) -> None:
        """Read them all."""
        self._files = {
            path.name: _Asset(
                path.read_bytes(), _TYPES[path.suffix], sha256(path.read_bytes()).hexdigest()[:12]
            )
            for path in sorted(folder.iterdir())
            if path.suffix in _TYPES
        }
        self.version: Final = sha256("".join(one.tag for one in self._files.values()).encode()).hexdigest()[
            :12
        ]

    def url(self, name: str) -> str:
        """Return the URL at which a page finds a file."""
        return f"/static/{name}?v={self._files[name].tag}"

    async def serve(self, request: Request) -> Response:
        """Serve one file."""
        # A look-up among what was read at the start: no path of a request reaches the disk
        found = self._files.get(request.path_params["name"])
        if found is None:
            return problem(404, "no such file")
        return Response(found.content, headers=_FOREVER, media_type=found.media_type)


ASSETS: Final = _Assets(FOLDER)
