"""What the commands of several parties print and ask alike: budgets as tables, TLS options.

May import: observability, rpc, runtime, autodiff, releases, reports, federated, model, privacy, numbers,
encoding and the flat files of `maskedlark`.
"""
