"""Speculative decoding without services: a target and a draft model in this process, under each acceptance rule.

python examples/in_process.py models/target models/draft "def fib(n):"
"""

import sys

import torch

from draftwire_core.engine import Acceptance, InProcessGenerator, RuleName, SamplingParams

target, draft, prompt = sys.argv[1:]
torch.set_num_threads(1)
generator = InProcessGenerator.load(target, draft)
for rule in RuleName:
    made = generator.generate(
        prompt, max_tokens=48, sampling=SamplingParams(temperature=0.8, seed=7), acceptance=Acceptance(rule)
    )
    print(f"--- {rule.value}: {made.accepted_tokens} of {made.draft_tokens} draft tokens accepted")
    print(prompt + made.text)
