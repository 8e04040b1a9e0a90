"""The verifier's Prometheus metrics."""
