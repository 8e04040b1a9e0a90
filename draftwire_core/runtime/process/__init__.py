"""The process of a service or of the gateway: settings, flags, logs, signals, tasks. Imports no gRPC."""
