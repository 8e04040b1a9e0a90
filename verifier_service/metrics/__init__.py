"""The verifier in Prometheus' terms; vLLM's names and meanings where it has them."""
