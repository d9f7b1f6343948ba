"""`python -m helper`: the command line."""

from helper.cli import main

main()
