"""The helper's durable record of used reports and spent budgets, and the checks on it.

May import: nothing from the package `helper`.
"""
