"""Devices of federated training: they hold examples, train locally, and send clipped updates or cover."""
