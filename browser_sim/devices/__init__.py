"""Devices of federated training: people who hold many examples, train at home, and send clipped updates or cover."""
