"""The function f of a round.

Clipped, quantised gradients of every (record, candidate label), masked and summed in the field.
"""
