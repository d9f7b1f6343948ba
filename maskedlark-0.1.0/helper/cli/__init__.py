"""The `helper` command.

May import: serving, core, releases, datasets, executors, trust, ledger, gradient.
"""
