"""What libraries do as they load that no command needs: command lines turn it off before they load them.

    def main() -> None:
        library_env.settle()
        app()

numpy's BLAS has a thread for each further core, which waits by spinning for 2^26 ticks of the processor's
clock before it sleeps: as it is started, and after each product. pydantic goes through the metadata of all
that is installed in search of plugins, which would see everything that is checked.
"""

import os
from typing import Final

# The first is 2^4 ticks, the least
_SETTINGS: Final = {"OPENBLAS_THREAD_TIMEOUT": "4", "PYDANTIC_DISABLE_PLUGINS": "__all__"}


def settle() -> None:
    """Set what is not set yet, for this process and those that it starts; before numpy and pydantic load."""
    # Defaults only: what the operator set stays.
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
