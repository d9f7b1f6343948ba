"""What datasets hold of their budgets by this ad server's records, and what still fits.

May import: peers, store, records.
"""
