"""Entry point of `draftwire-gateway` and `python -m gateway_service`."""

import sys

from draftwire_core.runtime.process.program import run_program

_NEEDED = (
    "fastapi",
    "jsonschema_rs",
    "prometheus_client",
    "pydantic",
    "pydantic_settings",
    "starlette",
    "structlog",
    "uvicorn",
    "uvloop",
)


def main() -> int:
    """Runs the gateway until a signal ends it; returns the exit status."""
    return run_program("gateway_service.process", extra="gateway", needed=_NEEDED)


if __name__ == "__main__":
    sys.exit(main())
