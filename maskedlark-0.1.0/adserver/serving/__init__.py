"""The ad server's process: intake, worker, metrics.

May import: client, views, collecting, ingest, measuring, simulating, training, budgets, peers, store,
records.
"""
