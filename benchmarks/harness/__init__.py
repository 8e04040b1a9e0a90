"""The harness: what benchmarks share. Rooms import it and never each other."""
