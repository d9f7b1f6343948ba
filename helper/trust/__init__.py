"""A helper's keys, its operator's floors, and the tasks that it signed.

May import: ledger, gradient.
"""
