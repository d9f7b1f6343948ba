"""gRPC glue: servers, channels, errors and messages. The parties' services and clients stand on it."""
