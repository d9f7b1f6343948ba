"""Devices of federated training.

People who hold many examples, train at home, and send clipped updates or cover.
"""
