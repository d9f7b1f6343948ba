"""Checked graphs evaluated and differentiated by torch, for a helper's general path and for devices.

The one room of the protocol that needs torch (the extra `torch`).

May import: releases, reports, federated, model, privacy, numbers, encoding and the flat files of
`maskedlark`.
"""
