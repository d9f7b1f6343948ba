"""The ad server from a notebook or a program: tasks, datasets, jobs, measurements, evaluations.

May import: views, collecting, ingest, measuring, simulating, training, budgets, peers, store, records.
"""

from adserver.client.client import Client

__all__ = ["Client"]
