"""`python -m adserver`: the command line."""

from adserver.cli import main

main()
