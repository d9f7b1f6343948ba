"""The `adserver` command, one module a group.

May import: quickstart, serving, dashboard, admin, client, views, messages, collecting, ingest,
measuring, simulating, training, budgets, peers, store, records.
"""
