"""Compiled loops and the integer functions that they share.

May import: nothing of its own package.
"""
