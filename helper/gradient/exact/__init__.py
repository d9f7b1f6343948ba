"""The exact gradient path: from bytes and int16 weights to field elements in integers and exactly rounded operations.

Read in this order: `rows` (the one rounding between layers), `tables`, `product` (and its two backends), `layer` and the layers
(`dense`, `elementwise`), `losses`, `clipping`, `masking`, then `plan`, `lowering` and `engine`. The specification, with the proofs,
is docs/explanation/numerics.md.
"""
