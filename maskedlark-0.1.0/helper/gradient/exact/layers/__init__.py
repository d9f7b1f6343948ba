"""The layers of the exact path, each forward and backward.

May import: products, kernels.
"""
