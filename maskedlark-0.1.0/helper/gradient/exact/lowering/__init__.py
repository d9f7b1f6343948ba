"""From a checked model to the steps that the engine runs.

May import: layers, products, kernels.
"""
