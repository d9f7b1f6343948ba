"""Models as files: a checked ONNX graph, its parameters, its weights on the wire.

May import: numbers, encoding and the flat files of `maskedlark`.
"""
