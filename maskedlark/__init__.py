"""The Masked LARk protocol: bytes and arrays in, bytes and arrays out.

Read the rooms in protocol order: `reports`, `model`, `releases`, `privacy`; `numbers`, `randomness`,
`canonical` and `errors` are what those stand on. None of these does I/O; randomness, time and keys are
arguments. `maskedlark.rpc` is the gRPC glue, and the only part that knows the wire messages.
"""
