"""The ad server's tables, and the classes that read and write them.

May import: records.
"""
