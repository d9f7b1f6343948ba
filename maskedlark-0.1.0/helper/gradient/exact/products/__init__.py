"""The two matrix products, on two backends with equal bits.

May import: kernels.
"""
