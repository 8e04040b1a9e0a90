"""gRPC servers, channels and message streams, and the in-process twin of a stream."""
