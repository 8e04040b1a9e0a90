"""The asyncio clients. ``_sync`` is generated from this package by ``scripts/generate_sync.py``."""
