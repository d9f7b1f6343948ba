"""Federated jobs: planned, forecast and run, round by round; the model that devices train.

May import: what the room around it may import, and that room's other modules.
"""
