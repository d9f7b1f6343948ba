"""Step 4: reports come in, over gRPC and over HTTP, are checked for what can be seen of them, and are stored blind."""
