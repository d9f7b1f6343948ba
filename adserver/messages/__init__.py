"""The messages of an ad server: one model for `--json`, the admin API and `RemoteAdServer`.

A message is made of a value with `of`, and gives it back with `value`. The OpenAPI document is made of the
same models.

May import: collecting, ingest, measuring, simulating, training, budgets, peers, store, records.
"""
