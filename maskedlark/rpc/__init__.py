"""The gRPC glue: channels, servers, certificates, faults. The only part that knows the wire messages.

May import: runtime, autodiff, releases, reports, federated, model, privacy, numbers, encoding and the flat
files of `maskedlark`.
"""
