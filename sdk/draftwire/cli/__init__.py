"""The command line: ``draftwire generate | drafters | bench | demo``."""

import os

# A verifier that goes away is news for the caller, not a log line of the gRPC library.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from draftwire.cli.app import main

__all__ = ["main"]
