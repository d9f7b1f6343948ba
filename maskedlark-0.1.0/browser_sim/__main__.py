"""`python -m browser_sim`: the command line."""

from browser_sim.cli import main

main()
