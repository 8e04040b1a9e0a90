"""SDK clients that run a draft model in their own process. Import them from ``draftwire.edge``."""

from draftwire._program.installation import how_to_install

try:
    from speculative_engine.model.packed_model import ModelLoadError
except ModuleNotFoundError as error:
    raise ImportError(
        f"draftwire.edge runs a draft model in this process and needs the serving libraries; {error.name} is "
        f"missing: {how_to_install('serve')}"
    ) from error

from edge_drafting.async_client import AsyncEdgeClient
from edge_drafting.client import EdgeClient
from edge_drafting.local_drafter import LocalDrafter

__all__ = ["AsyncEdgeClient", "EdgeClient", "LocalDrafter", "ModelLoadError"]
