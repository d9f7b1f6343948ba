"""What charges cost together: bounds in closed form, by Renyi divergences, and by loss distributions.

May import: `charge` and `mechanism` of the room around it, and the flat files of `maskedlark`.
"""
