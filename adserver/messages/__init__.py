"""The messages of an ad server: one model for `--json`, the admin API and `RemoteAdServer`.

A message is made of a value with `of`, and gives it back with `value`. The OpenAPI document is made of the
same models.

May import: measuring, training, collecting, budgets, peers, store, records.
"""
