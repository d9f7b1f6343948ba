"""The ad server: takes in sealed reports, seals datasets at both helpers, runs jobs, measures and steps models. Imports no other party."""

from adserver.client import Client

__all__ = ["Client"]
