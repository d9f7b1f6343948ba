"""The intake.

Reports come in over gRPC and HTTP, are checked for what can be seen of them, and are stored blind.

May import: budgets, peers, store, records.
"""
