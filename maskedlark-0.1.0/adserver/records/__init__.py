"""Plain data and state machines, without a database.

May import: nothing of its own package.
"""
