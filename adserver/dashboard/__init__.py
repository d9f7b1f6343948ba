"""The dashboard: pages of the ad server in a browser, and the server that shows them.

May import: admin, client, views, messages, collecting, ingest, measuring, simulating, training, budgets,
peers, store, records.
"""
