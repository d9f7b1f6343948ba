"""Print what a party needs from a package index, from pyproject.toml: `python requirements.py EXTRA,...`.

The Dockerfile installs that first, in a layer of its own, so that a change of our code does not install the
world again; `make setup` installs it by hash, which an editable installation cannot have.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Return the requirements of the package itself and of the extras, each once.

    An extra may ask for others of this project, as `all` does.
    """
    project = tomllib.loads(pyproject.read_text())["project"]
    own = f"{project['name']}["
    found = set(project["dependencies"])
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            if requirement.startswith(own):
                found.update(requirements(pyproject, requirement.removeprefix(own).rstrip("]").split(",")))
            else:
                found.add(requirement)
    return sorted(found)


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path("pyproject.toml"), sys.argv[1].split(","))) + "\n")
