"""What leaves a helper: jobs, rounds, queries and evaluations, each charged once and answered once.

May import: executors, datasets, trust, ledger, gradient.
"""
