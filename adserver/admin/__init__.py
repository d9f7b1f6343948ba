"""The admin API: tasks, datasets, jobs, queries, budgets and helpers over HTTP, for holders of a grant.

May import: client, views, messages, collecting, ingest, measuring, simulating, training, budgets, peers,
store, records.
"""
