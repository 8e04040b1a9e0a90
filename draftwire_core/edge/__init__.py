"""SDK clients that run a draft model in their own process. Import them from ``draftwire.edge``."""

from draftwire._extras import how_to_install

try:
    from draftwire_core.engine.model.packed_model import ModelLoadError
except ModuleNotFoundError as error:
    raise ImportError(
        f"draftwire.edge runs a draft model in this process and needs the serving libraries; {error.name} is "
        f"missing: {how_to_install('serve')}"
    ) from error

from draftwire_core.edge.async_client import AsyncEdgeClient
from draftwire_core.edge.client import EdgeClient
from draftwire_core.edge.local_drafter import LocalDrafter

__all__ = ["AsyncEdgeClient", "EdgeClient", "LocalDrafter", "ModelLoadError"]
