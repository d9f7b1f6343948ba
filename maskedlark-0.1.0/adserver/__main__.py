"""`python -m adserver`: the command line."""

from adserver.cli.main import main

main()
