"""Clipping, exact noise, and the accounting of both epsilons.

May import: numbers, encoding and the flat files of `maskedlark`.
"""
