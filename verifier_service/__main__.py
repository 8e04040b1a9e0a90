"""Entry point of `draftwire-verifier` and `python -m verifier_service`."""

import sys

from draftwire_core.runtime.process.program import NEEDED, run_program


def main() -> int:
    """Runs the service until a signal ends it; returns the exit status."""
    return run_program("verifier_service.process", extra="serve", needed=NEEDED)


if __name__ == "__main__":
    sys.exit(main())
