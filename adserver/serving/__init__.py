"""The ad server's process: intake, worker, metrics.

May import: client, views, collecting, ingest, measuring, training, budgets, peers, store, records.
"""
