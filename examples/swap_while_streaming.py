"""Swaps the drafter of a running request, and compares the text with plain decoding's.

    python -m verifier_service --model models/target &                                    # localhost:50051
    python -m drafter_service --model models/draft-early --listen localhost:50052 &
    python -m drafter_service --model models/draft --listen localhost:50053 &
    python examples/swap_while_streaming.py localhost:50051 localhost:50052 localhost:50053

The exit status is 1 if the texts differ.
"""

import sys
from concurrent.futures import Future, ThreadPoolExecutor

from draftwire import Client, GenerateOptions, Speculation, Swap

PROMPT = "def read_config(path):\n"
OPTIONS: GenerateOptions = {"max_tokens": 800, "temperature": 0.8, "seed": 7, "ignore_eos": True}


def stream_and_swap(client: Client, new: str) -> str:
    """Generates with the attached drafter; after 40 tokens, attaches the one at address `new` and swaps the two."""

    def swap_drafters() -> Swap:
        client.drafters.attach(new, "second")
        return client.drafters.swap("first", "second")

    count, swap = 0, Future[Swap]()
    with ThreadPoolExecutor(1) as background, client.stream(PROMPT, **OPTIONS) as stream:
        started = False
        for chunk in stream:
            print(chunk.text, end="", flush=True)
            count += len(chunk.token_ids)
            if not started and count >= 40:
                started, swap = True, background.submit(swap_drafters)
    moved = swap.result().moved_sequences
    print(f"\n\nmoved while running: {moved} request{'' if moved == 1 else 's'}")
    for share in stream.result.speculation.drafters:
        print(f"{share.name}: {share.accepted_tokens} of {share.draft_tokens} draft tokens accepted")
    return stream.result.text


def main(verifier: str, first: str, second: str) -> int:
    with Client(verifier) as client:
        plain = client.generate(PROMPT, **OPTIONS | {"speculation": Speculation(enabled=False)}).text
        client.drafters.attach(first, "first")
        drafted = stream_and_swap(client, second)
        client.drafters.detach("second")
    print("identical to plain decoding:", "yes" if drafted == plain else "no")
    return int(drafted != plain)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
