"""Thousands of simulated devices in one process, by the strategy functions that real devices and the ad server run.

May import: budgets, peers, store, records.
"""
