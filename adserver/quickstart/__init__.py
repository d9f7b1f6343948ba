"""A whole fleet in one folder of this machine: two helpers, an ad server, browsers with an own table.

May import: serving, dashboard, admin, client, views, messages, collecting, ingest, measuring,
simulating, training, budgets, peers, store, records.
"""
