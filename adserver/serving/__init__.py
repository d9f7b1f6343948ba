"""The ad server's process: intake, worker, metrics.

May import: dashboard, admin, client, views, messages, collecting, ingest, measuring, simulating,
training, budgets, peers, store, records.
"""
