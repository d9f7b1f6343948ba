"""The function f of a round: clipped, quantised gradients, masked and summed in the field.

May import: nothing from the package `helper`.
"""
