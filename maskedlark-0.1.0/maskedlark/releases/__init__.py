"""Everything that leaves a helper: jobs and their rounds, queries, evaluations, and what each costs.

May import: reports, federated, model, privacy, numbers, encoding and the flat files of `maskedlark`.
"""
