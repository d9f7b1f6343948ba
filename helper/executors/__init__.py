"""Where work on many records runs, behind one interface: this machine's processes and threads.

May import: datasets, trust, ledger, gradient.
"""
