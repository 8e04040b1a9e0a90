"""`draftwire-drafter`, or `python -m drafter_service`."""

import sys

from draftwire.program import run_program

_NEEDED = (
    "grpc_health",
    "grpc_reflection",
    "h11",
    "huggingface_hub",
    "llguidance",
    "numpy",
    "prometheus_client",
    "pydantic",
    "pydantic_settings",
    "safetensors",
    "structlog",
    "tokenizers",
    "torch",
    "transformers",
    "uvloop",
)


def main() -> int:
    """Runs the service until a signal ends it; returns the exit status."""
    return run_program("drafter_service.process", extra="serve", needed=_NEEDED)


if __name__ == "__main__":
    sys.exit(main())
