"""Prints what an environment holds: a bill of materials in CycloneDX 1.5, with versions and licences.

`ENVIRONMENT/bin/python bill_of_materials.py > bill-of-materials.cdx.json`, when the image is built. Scanners
for vulnerabilities read this format; what Debian brings they find in the image's own list (/var/lib/dpkg).
"""

import json
import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from typing import Any, Final

PROJECT: Final = "masked-lark"
_LONGEST: Final = 80
"""Some packages put the whole text of their licence where its name belongs."""


def bill(found: Iterable[Distribution]) -> dict[str, Any]:
    """The bill, whose subject is the project itself, with one component for each other package."""
    components = {one["name"]: one for one in map(component, found)}
    subject = {**components.pop(PROJECT), "type": "application"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": subject},
        "components": [components[name] for name in sorted(components)],
    }


def component(distribution: Distribution) -> dict[str, Any]:
    """One package."""
    name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    licence = _licence(distribution)
    return {
        "type": "library",
        "name": name,
        "version": distribution.version,
        "purl": f"pkg:pypi/{name}@{distribution.version}",
        **({"licenses": [licence]} if licence else {}),
    }


def _licence(distribution: Distribution) -> dict[str, Any]:
    """The licence as the package tells it: an SPDX expression, a classifier, or a name; else empty."""
    told = distribution.metadata
    if "License-Expression" in told:
        return {"expression": told["License-Expression"]}
    classified = [one for one in told.get_all("Classifier") or [] if one.startswith("License ::")]
    named = told.get_all("License") or [""]
    names = [one.rpartition(" :: ")[2] for one in classified] or named
    name = next((one for one in names if 0 < len(one) <= _LONGEST and "\n" not in one), "")
    return {"license": {"name": name}} if name else {}


if __name__ == "__main__":
    json.dump(bill(distributions()), sys.stdout, indent=1)
