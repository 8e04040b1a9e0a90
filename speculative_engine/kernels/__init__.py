"""The compiled part of the engine, for CPUs. Its sources are in `csrc`."""
