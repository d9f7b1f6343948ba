"""Prints what a party needs from a package index, from pyproject.toml: `python requirements.py EXTRA...`.

The Dockerfile installs that first, in a layer of its own, so that a change of our code does not install the
world again.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """The requirements of the package itself and of the extras, one each."""
    project = tomllib.loads(pyproject.read_text())["project"]
    optional = project["optional-dependencies"]
    return sorted(
        {*project["dependencies"], *(requirement for extra in extras for requirement in optional[extra])}
    )


if __name__ == "__main__":
    sys.stdout.write(
        "\n".join(requirements(Path(__file__).with_name("pyproject.toml"), sys.argv[1].split(","))) + "\n"
    )
