"""The harness: code that benchmarks share. Rooms import it and never each other."""
