"""Models of jobs without helpers: instances or rounds, and the updates that came.

May import: the stores of the room around it, and what that room may import.
"""
