"""The entry point of `draftwire-drafter` and `python -m drafter_service`."""

import sys

from draftwire_core.runtime.process.program import NEEDED, run_program


def main() -> int:
    """Runs the service until a signal ends it. Returns the exit status."""
    return run_program("drafter_service.process", extra="serve", needed=NEEDED)


if __name__ == "__main__":
    sys.exit(main())
