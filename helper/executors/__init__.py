"""Where work on many records runs, behind one interface: this machine, or workers on others.

May import: datasets, trust, ledger, gradient.
"""
