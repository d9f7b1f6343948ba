"""The `helper` command.

May import: serving, core, releases, executors, datasets, trust, ledger, gradient.
"""
