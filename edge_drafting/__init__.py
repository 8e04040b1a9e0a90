"""draftwire.edge: clients that draft by themselves.

They need the serving libraries: ``pip install -e '.[serve]'`` in a checkout.

    from draftwire.edge import EdgeClient

    with EdgeClient("localhost:50051", model="models/draft") as client:
        print(client.generate("def fib(n):", max_tokens=64).text)

The draft model runs in this process. Only token ids go to the verifier, which checks them with the same engine and
gives the same tokens as to any other client.
"""

try:
    from speculative_engine.model.packed_model import ModelLoadError
except ModuleNotFoundError as error:
    raise ImportError(
        f"draftwire.edge runs a draft model in this process and needs the serving libraries, of which {error.name} is "
        "missing: pip install -e '.[serve]' in a checkout"
    ) from error

from edge_drafting.async_client import AsyncEdgeClient
from edge_drafting.client import EdgeClient
from edge_drafting.local_drafter import LocalDrafter

__all__ = ["AsyncEdgeClient", "EdgeClient", "LocalDrafter", "ModelLoadError"]
