"""The parts that all draftwire services share: settings, logs, errors, the gRPC server, its life cycle and its streams.

This package is independent of models: it imports neither torch nor the engine, and a test enforces that.
"""
