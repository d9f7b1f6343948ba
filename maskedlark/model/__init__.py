"""Models as files: a checked ONNX graph, its parameters, its weights on the wire.

May import: numbers and the flat files of `maskedlark`.
"""
