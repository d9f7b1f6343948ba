"""From sealed shares to a dataset on disk: opened, committed once, encrypted at rest.

May import: trust, ledger, gradient.
"""
