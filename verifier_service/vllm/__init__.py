"""vLLM as the engine behind the verifier's contract."""
