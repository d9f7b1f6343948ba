"""The exact gradient path.

From bytes and int16 weights to field elements in integers and exactly rounded operations.

Read in this order: `rows` (the one rounding between layers), `tables`, `product` (and its two backends),
`layer` and the layers (`dense`, `elementwise`, `convolution`, `pooling`, `normalisation`, `embedding`,
`layout`), `losses`, `clipping`, `masking`, then `lowered`, `lowering`, `engine` and `self_check`. The
specification is docs/spec/numerics.md; the proofs are in docs/explanation/numerics.md.
"""
