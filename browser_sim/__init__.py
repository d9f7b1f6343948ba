"""The browsers: simulated people that see ads, convert or do not, and report by the protocol.

It imports no other party's code.
"""
