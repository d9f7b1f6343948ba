"""The helper's memory of what was used and spent, and what checks it.

May import: nothing of its own package.
"""
