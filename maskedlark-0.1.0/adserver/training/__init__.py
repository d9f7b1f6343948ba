"""Jobs: submitted, run round by round, stepped, exported.

May import: budgets, peers, store, records.
"""
