"""The prime field and fixed-point numbers.

May import: the flat files of `maskedlark`.
"""
