"""The wire contract, and the code generated from it (`make protos`)."""
