"""From a task to a sealed dataset.

May import: budgets, peers, store, records.
"""
