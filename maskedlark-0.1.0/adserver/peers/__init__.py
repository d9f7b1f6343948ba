"""The two helpers, as the ad server reaches them.

May import: store, records.
"""
