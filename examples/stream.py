"""Streams a text and shows the source of each token: accepted draft tokens are in [brackets].

python examples/stream.py "def fib(n):"                   # a verifier at localhost:50051
python examples/stream.py "class Stack:" localhost:50061
"""

import asyncio
import sys

from draftwire import AsyncClient


async def main(prompt: str, address: str) -> None:
    async with AsyncClient(address) as client:
        async with client.stream(prompt, max_tokens=64, temperature=0.8, seed=7) as stream:
            print(prompt, end="")
            async for chunk in stream:
                for text, source in zip(chunk.token_texts, chunk.sources, strict=True):
                    print(f"[{text}]" if source else text, end="", flush=True)
        print()
        for share in stream.result.speculation.drafters:
            print(f"{share.name}: {share.accepted_tokens} of {share.draft_tokens} accepted", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(
        main(
            sys.argv[1] if len(sys.argv) > 1 else "def fib(n):",
            sys.argv[2] if len(sys.argv) > 2 else "localhost:50051",
        )
    )
