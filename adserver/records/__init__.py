"""Plain data and state machines, without a database.

May import: no other module of this package.
"""
