"""Clients that draft by themselves.

They need the serving libraries: ``pip install -e '.[serve]'`` in a checkout.

    from draftwire.edge import EdgeClient

    with EdgeClient("localhost:50051", model="models/draft") as client:
        print(client.generate("def fib(n):", max_tokens=64).text)

The draft model runs in this process. Only token ids go to the verifier, which checks them with the same engine and
gives the same tokens as to any other client.
"""

from edge_drafting import AsyncEdgeClient, EdgeClient, LocalDrafter, ModelLoadError

__all__ = ["AsyncEdgeClient", "EdgeClient", "LocalDrafter", "ModelLoadError"]
