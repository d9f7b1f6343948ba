"""How the columns of a table become the bytes of features: the same in every file and browser.

May import: the flat files of `maskedlark`.
"""
