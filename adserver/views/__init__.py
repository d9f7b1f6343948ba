"""Results as tables, pictures and files.

May import: collecting, ingest, measuring, training, budgets, peers, store, records.
"""
