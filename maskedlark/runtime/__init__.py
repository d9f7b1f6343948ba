"""What a long-running process stands on: its database, durable files, signals, hardening.

May import: autodiff, releases, reports, federated, model, privacy, numbers, encoding and the flat files of
`maskedlark`.
"""
