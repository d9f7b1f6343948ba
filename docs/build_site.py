"""`make site`: build the documentation of this version beside the versions that are there.

    make site ARGS="--out FOLDER --url https://docs.example/lark"

The folder holds the site of each version in a folder of its name, `versions.json`, which the pages' list of
versions is made of, and a page that leads to the newest one. It fails at a broken link.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from packaging.version import Version

_ROOT: Final = Path(__file__).parents[1]
_LEADS_ON: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={newest}/index.html">
<title>Masked LARk</title><a href="{newest}/index.html">Masked LARk {newest}</a></html>
"""


def build(out: Path, url: str = "") -> Path:
    """Build this version's site, and return its folder.

    Args:
        out: The folder of all versions.
        url: Where that folder will be read, or empty: social cards then show no picture.

    Raises:
        CalledProcessError: a page cannot be built, or a link is broken.
    """
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    made: Path = out / version
    site_url = f"{url.rstrip('/')}/{version}/" if url else ""
    environment = {**os.environ, "SITE_URL": site_url, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "properdocs", "build", "--strict", "--quiet"]
    subprocess.run(  # noqa: S603  our own program
        [*command, "--config-file", str(_ROOT / "mkdocs.yml"), "--site-dir", str(made.resolve())],
        check=True,
        cwd=_ROOT,
        env=environment,
    )
    there = sorted((one.parent.name for one in out.glob("*/index.html")), key=Version, reverse=True)
    versions = [{"version": one, "title": one, "aliases": []} for one in there]
    (out / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")
    (out / "index.html").write_text(_LEADS_ON.format(newest=there[0]))
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument("--out", type=Path, default=_ROOT / "site", help="Folder of all versions.")
    parser.add_argument("--url", default="", help="Where that folder will be read.")
    asked = parser.parse_args()
    site = build(asked.out, asked.url)
    print(f"the site of {site.name} is in {site}; to read it, with its search:")
    print(f"  python -m http.server --bind 127.0.0.1 -d {shlex.quote(str(asked.out))}")
