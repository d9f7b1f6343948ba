"""The Masked LARk protocol: bytes and arrays in, bytes and arrays out.

Read the modules in protocol order: `task`, `report`, `sealing`, `dataset`, `job`, `model`, `round`, `noise`,
`accounting`. `field`, `fixed_point`, `randomness`, `canonical` and `errors` are what those stand on. Nothing
here does I/O; randomness, time and keys are arguments. `maskedlark.rpc` is the gRPC glue, and the only part
that knows the wire messages.
"""
