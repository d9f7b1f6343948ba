"""The operators that a helper accepts.

For each, its attributes, its trainable inputs, and the rule that checks one use of it.

`call` is what a row holds, and what its rule takes and gives; `elementwise`, `layout`, `layers` and
`recurrent` hold the rows with their rules; `table` joins them.
"""
