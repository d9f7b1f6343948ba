"""From a task to the reports of a sealed dataset: what browsers make and helpers open.

May import: federated, model, privacy, numbers, encoding and the flat files of `maskedlark`.
"""
