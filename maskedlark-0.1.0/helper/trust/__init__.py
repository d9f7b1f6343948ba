"""Whom a helper trusts and with which keys.

Its key ring, its operator's floors, the tasks that it signed.

May import: ledger, gradient.
"""
