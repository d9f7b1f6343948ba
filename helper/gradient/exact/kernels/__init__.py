"""Compiled loops and the integer functions that they share.

May import: nothing from the package `exact`.
"""
