"""What an operator can see of a running service: logs, metrics, traces and health.

None of it tells anything of a person or a secret.

Labels, span attributes and log fields come from closed sets: method names, status codes, reasons, states,
public ids. No field is ever filled from a report, a share, a mask, a weight, a key or an address of a peer.

May import: rpc, runtime, autodiff, releases, reports, federated, model, privacy, numbers, encoding and the
flat files of `maskedlark`.
"""
