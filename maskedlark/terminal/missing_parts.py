"""What to install where an import fails: the extra of our package that has the missing part.

>>> how_to_install("onnxruntime.capi", "adserver.training.inference")[-35:]
"pip install 'masked-lark[adserver]'"
"""

import re
from importlib.metadata import PackageNotFoundError, requires
from typing import Final

_OURS: Final = "masked-lark"
_ROOMS: Final = {"adserver": "adserver", "browser_sim": "browser", "helper": "helper"}
"""The extra of each party, by the name of its folder."""
_DISTRIBUTIONS: Final = {
    "grpc_health": "grpcio-health-checking",
    "opentelemetry": "opentelemetry-sdk",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Modules that are not named like what is installed."""
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+).*?extra == ['\"]([a-z-]+)['\"]")


def how_to_install(missing: str, needed_by: str) -> str:
    """Return one line: what is missing, and the command that installs it.

    Args:
        missing: The module that could not be imported.
        needed_by: The module that imports it: the extra of the module's party is named if several have the
            part.
    """
    top = missing.partition(".")[0]
    distribution = _DISTRIBUTIONS.get(top, top)
    extras = [extra for name, extra in _extras() if _same(name, distribution)]
    own = _ROOMS.get(needed_by.partition(".")[0])
    extra = own if own in extras else next(iter(extras), None)
    wanted = distribution if extra is None else f"{_OURS}[{extra}]"
    return f"{top} is not installed, and this command needs it: pip install '{wanted}'"


def _same(one: str, other: str) -> bool:
    return re.sub(r"[-_.]+", "-", one).lower() == re.sub(r"[-_.]+", "-", other).lower()


def _extras() -> list[tuple[str, str]]:
    """Return what each of our extras installs, and the extra, in their order."""
    try:
        declared = requires(_OURS) or []
    except PackageNotFoundError:  # run from a folder without being installed
        return []
    return [(found[1], found[2]) for one in declared if (found := _REQUIREMENT.match(one))]
