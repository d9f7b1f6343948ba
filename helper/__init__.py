"""One of the two independent helper services: opens its shares, answers rounds, keeps the ledger. Imports no other party."""
