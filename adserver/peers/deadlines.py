"""How long helpers have, without what asking them needs: command lines import it."""

from typing import Final

ROUND_DEADLINE_S: Final = 900.0
"""By default: several times what the largest round takes, for a machine that is busy with others."""
