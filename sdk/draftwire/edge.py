"""Clients that run a draft model in their own process.

They need the serving libraries: ``pip install 'draftwire-services[serve]'``, or in a checkout
``pip install -e '.[serve]'``.

    from draftwire.edge import EdgeClient

    with EdgeClient("localhost:50051", model="models/draft") as client:
        print(client.generate("def fib(n):", max_tokens=64).text)

The draft model runs in the caller's process. Only token ids are sent to the verifier, which verifies them as it does
any drafter's and gives the same tokens as to any other client.
"""

from draftwire._extras import how_to_install

try:
    from draftwire_core.edge import AsyncEdgeClient, EdgeClient, LocalDrafter, ModelLoadError
except ModuleNotFoundError as error:
    raise ImportError(
        f"draftwire.edge runs a draft model in this process and needs the services' packages; {error.name} is missing: "
        f"{how_to_install('serve')}"
    ) from error

__all__ = ["AsyncEdgeClient", "EdgeClient", "LocalDrafter", "ModelLoadError"]
