"""Results as tables, pictures and files.

May import: collecting, ingest, measuring, simulating, training, budgets, peers, store, records.
"""
