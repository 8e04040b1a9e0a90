"""gRPC servers, channels and message streams, and the in-process counterpart of a stream."""
