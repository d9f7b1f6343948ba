"""This processor with the instructions that multiply bytes, and AVX-512, not used: a stand-in for a machine
that has AVX2 alone.

The engine's products are float64 then, and BLAS and PyTorch take their AVX2 code, so that both sides of a
ratio go without. Caches, clock and memory are still this machine's.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from helper.gradient.exact.kernels.compiled import KINDS

ENVIRONMENT: Final = {
    "OPENBLAS_CORETYPE": "Haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    **KINDS[-1].environment,
}
"""What these libraries read when they are loaded, the last two for the engine's own loops."""


def restart_without(arguments: Sequence[str]) -> None:
    """Run Python anew with some arguments, unless it runs so: libraries choose once. Does not return then."""
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        sys.exit(subprocess.call([sys.executable, *arguments], env={**os.environ, **ENVIRONMENT}))
