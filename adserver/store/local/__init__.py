"""Jobs without helpers: their own database, the model's instances or rounds, and the updates that came.

May import: the database helpers of the room around it, and what that room may import.
"""
