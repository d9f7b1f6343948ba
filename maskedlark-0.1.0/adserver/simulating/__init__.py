"""Thousands of simulated devices in one process, by the functions that devices and ad servers run.

May import: budgets, peers, store, records.
"""
