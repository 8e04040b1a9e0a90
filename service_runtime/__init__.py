"""What every draftwire service shares: settings, logs, errors, the gRPC server, its life cycle and its streams.

Nothing here knows a model: this package imports neither torch nor speculative_engine, and a test keeps it so.
"""
