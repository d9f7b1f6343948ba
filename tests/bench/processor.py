"""What kind of processor a figure was measured on: its name, and the instructions that decide how fast
integers multiply.
"""

import platform
from pathlib import Path
from typing import Final

FEATURES: Final = {
    "avx2": "AVX2",
    "avx512bw": "AVX-512BW",
    "avx_vnni": "AVX-VNNI",
    "avx512_vnni": "AVX-512 VNNI",
    "amx_int8": "AMX",
    "i8mm": "i8mm",
    "sha_ni": "SHA",
}


def processor() -> str:
    """Such as "AMD EPYC with AVX2, AVX-512BW, AVX-512 VNNI, SHA"; no more than the architecture where Linux
    does not tell.
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = set((told.get("flags") or told.get("Features") or "").split())
    has = [shown for flag, shown in FEATURES.items() if flag in flags]
    return (
        f"{told.get('model name') or platform.machine()} with"
        f" {', '.join(has) or 'none of ' + ', '.join(FEATURES.values())}"
    )
