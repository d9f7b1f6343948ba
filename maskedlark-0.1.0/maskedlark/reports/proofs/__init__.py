"""What a report proves of itself: the browser's half (`proving`), the helpers' (`check`), and its plaintexts.

May import: measurement and share_seed of this room, numbers, and the flat files of `maskedlark`.
"""
