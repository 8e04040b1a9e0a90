"""SDK clients that run a draft model in their own process. Import them from ``draftwire.edge``."""

try:
    from speculative_engine.model.packed_model import ModelLoadError
except ModuleNotFoundError as error:
    raise ImportError(
        f"draftwire.edge runs a draft model in this process and needs the serving libraries; {error.name} is "
        "missing: pip install -e '.[serve]' in a checkout"
    ) from error

from edge_drafting.async_client import AsyncEdgeClient
from edge_drafting.client import EdgeClient
from edge_drafting.local_drafter import LocalDrafter

__all__ = ["AsyncEdgeClient", "EdgeClient", "LocalDrafter", "ModelLoadError"]
