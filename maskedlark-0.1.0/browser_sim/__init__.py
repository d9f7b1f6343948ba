"""The browsers: simulated people who see ads, convert or do not, and report under the protocol.

Knows no other party's code.
"""
