"""Clients that draft by themselves: the import path of ``edge_drafting`` for users."""

from edge_drafting import AsyncEdgeClient, EdgeClient, LocalDrafter, ModelLoadError

__all__ = ["AsyncEdgeClient", "EdgeClient", "LocalDrafter", "ModelLoadError"]
