"""Drafts in this process for a verifier elsewhere, and compares the text with plain decoding's.

    python -m verifier_service --model models/target &        # localhost:50051
    python examples/edge.py models/draft "def fib(n):" localhost:50051

The exit status is 1 if the texts differ.
"""

import sys

from draftwire import GenerateOptions, Speculation
from draftwire.edge import EdgeClient

model = sys.argv[1] if len(sys.argv) > 1 else "models/draft"
prompt = sys.argv[2] if len(sys.argv) > 2 else "def fib(n):"
address = sys.argv[3] if len(sys.argv) > 3 else "localhost:50051"
options: GenerateOptions = {"max_tokens": 64, "temperature": 0.8, "top_p": 0.95, "seed": 7}

with EdgeClient(address, model=model, threads=1) as client:
    drafted = client.generate(prompt, **options)
    plain = client.generate(prompt, speculation=Speculation(enabled=False), **options)

print(prompt + drafted.text)
for share in drafted.speculation.drafters:
    print(f"{share.name}: {share.accepted_tokens} of {share.draft_tokens} accepted", file=sys.stderr)
print(f"{drafted.speculation.steps} steps of the target instead of {plain.speculation.steps}", file=sys.stderr)
same = drafted.token_ids == plain.token_ids
print(f"identical to plain decoding: {'yes' if same else 'NO'}")
sys.exit(not same)
