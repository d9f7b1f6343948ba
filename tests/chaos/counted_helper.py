"""`helper`, as installed, which also writes down in which rounds each record takes part.

    python tests/chaos/counted_helper.py FILE serve --data ...

The file grows by one line a computed round, written at once, so that a kill loses at most the last one;
rounds that were computed and never left are in it too. `tests.chaos.counted_fleet` starts and reads it.
"""

import sys
from pathlib import Path


def main() -> None:
    """Take the file's name off the command line, and be a helper."""
    sys.path.insert(0, str(Path(__file__).parents[2]))  # in place of this folder
    from helper.cli.main import main as helper
    from tests.chaos.counted_fleet import Written

    with Written(file=Path(sys.argv.pop(1))).counted():
        helper()


if __name__ == "__main__":  # not in the helper's workers, which import this file
    main()
