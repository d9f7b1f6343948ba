"""A number with its noun, as people read it.

>>> plural(1, "row is", "rows are"), plural(20_000, "reply", "replies"), plural(0, "row")
('1 row is', '20000 replies', '0 rows')
"""


def plural(count: int, one: str, many: str = "") -> str:
    """Return the count with the noun for one, or for many: by default that for one with an s."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
