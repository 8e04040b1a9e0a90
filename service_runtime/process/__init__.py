"""The service process: settings, flags, logs, signals, tasks and threads. Imports no gRPC."""
