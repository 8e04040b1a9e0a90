"""One verifier's Draft stream, as the drafter serves it."""
