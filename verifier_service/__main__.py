"""`draftwire-verifier`, or `python -m verifier_service`."""

import sys

from draftwire.program import run_program

_NEEDED = (
    ("torch", "transformers", "tokenizers", "safetensors", "numpy", "grpc_health", "grpc_reflection", "pydantic")
    + ("pydantic_settings", "structlog", "uvloop", "llguidance", "h11", "prometheus_client")
)


def main() -> int:
    """Runs the service until a signal ends it; returns the exit status."""
    return run_program("verifier_service.process", extra="serve", needed=_NEEDED)


if __name__ == "__main__":
    sys.exit(main())
