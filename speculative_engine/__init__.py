"""The engine: token trees, coupled sampling, KV slots, packed model passes. Knows torch, knows no gRPC."""
