"""The synchronous clients, generated from ``_async`` by ``scripts/generate_sync.py``."""
