"""Where work on many records runs: the process pools of this machine.

May import: ledger, gradient.
"""
