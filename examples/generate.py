"""Continues a prompt and prints the statistics of speculation.

python examples/generate.py "def fib(n):"                 # a verifier at localhost:50051
python examples/generate.py "class Stack:" localhost:50061
"""

import sys

from draftwire import Client

prompt = sys.argv[1] if len(sys.argv) > 1 else "def fib(n):"
address = sys.argv[2] if len(sys.argv) > 2 else "localhost:50051"

with Client(address) as client:
    result = client.generate(prompt, max_tokens=64, temperature=0.8, top_p=0.95, seed=7)

print(prompt + result.text)
speculation = result.speculation
print(
    f"\n{len(result.token_ids)} tokens in {speculation.steps} steps of the target: "
    f"{speculation.acceptance_length:.2f} tokens a step, {speculation.acceptance_rate:.0%} of "
    f"{speculation.draft_tokens} draft tokens accepted",
    file=sys.stderr,
)
