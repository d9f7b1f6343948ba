"""The operators that a helper accepts.

For each, its attributes, its trainable inputs, and the rule that checks one use of it.

`call` is what a rule takes and gives; `elementwise`, `layout`, `layers` and `recurrent` hold the rules;
`table` lists them all; `folding` computes the ones whose inputs are known.
"""
