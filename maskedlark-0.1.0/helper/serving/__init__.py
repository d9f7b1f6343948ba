"""The gRPC service and the process around it.

May import: core, releases, datasets, executors, trust, ledger, gradient.
"""
