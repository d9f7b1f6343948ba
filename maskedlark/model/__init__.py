"""Models: what the ad server sends as ONNX, and what a helper accepts of it.

`graph` holds the parsed form, `onnx_file` the strict parser, `weights` the quantised tensors that travel each
round.
"""
