"""What leaves a helper: jobs, rounds, queries and evaluations, each charged once and answered once.

May import: datasets, executors, trust, ledger, gradient.
"""
