"""`python -m helper`: the command line."""

from helper.cli.main import main

main()
