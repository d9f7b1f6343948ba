"""The gRPC service and the process around it.

May import: core, releases, executors, datasets, trust, ledger, gradient.
"""
