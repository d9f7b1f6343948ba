"""Results as tables, pictures and files.

May import: messages, collecting, ingest, measuring, simulating, training, budgets, peers, store,
records.
"""
