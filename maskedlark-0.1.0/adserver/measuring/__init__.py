"""Queries and evaluations: asked of both helpers, added, read with their intervals.

May import: budgets, peers, store, records.
"""
