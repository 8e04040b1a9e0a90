"""Speculative decoding by hand, with the parts of the engine: draft, verify, roll back.

python examples/speculative_decoding_by_hand.py models/target models/draft "def fib(n):"
"""

import sys

import numpy as np
import torch

from draftwire_core.engine import SamplingParams
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.coupled_sampler import SamplingBatch, sample
from draftwire_core.engine.text.tokenizer import Tokenizer

SAMPLING, DRAFTS, LENGTH = SamplingParams(temperature=0.8, seed=7), 4, 48


class Sequence:
    """The KV slots that one model holds for the sequence, by position."""

    def __init__(self, model: PackedModel):
        self.model = model
        self.slots: list[int] = []

    def compute(self, tokens: list[int]) -> list[int]:
        """Computes the tokens without a slot in one pass; returns the token that the model draws after each of them."""
        builder, positions = BatchBuilder(), range(len(self.slots), len(tokens))
        taken = self.model.pool.take(len(positions)).tolist()
        rows = [builder.add_row(tokens[at], at, slot, True) for at, slot in zip(positions, taken, strict=True)]
        builder.add_lane(np.array(self.slots, dtype=np.int64), rows)
        logits = self.model.forward(builder.build(self.model.group_size, self.model.device))
        self.slots += taken
        # The noise depends on the seed, the position and the token alone, so both models draw under the same noise.
        batch = SamplingBatch.build([SAMPLING] * len(rows), [at + 1 for at in positions])
        return sample(logits, batch, self.model.vocab_size).token_ids.tolist()

    def roll_back(self, length: int) -> None:
        """Keeps the slots of the first `length` tokens; the others return to the pool, and no tensor is copied."""
        self.model.pool.give_back(self.slots[length:])
        del self.slots[length:]


torch.set_num_threads(1)
target, draft = (Sequence(PackedModel.load(source, slots=1024)) for source in sys.argv[1:3])
tokenizer = Tokenizer.load(sys.argv[1])
tokens, passes = tokenizer.encode(sys.argv[3]), 0
end = len(tokens) + LENGTH
while len(tokens) < end:
    guesses = list(tokens)
    while len(guesses) < len(tokens) + DRAFTS:  # draft
        guesses.append(draft.compute(guesses)[-1])
    drawn = target.compute(guesses)[-1 - DRAFTS :]  # verify: the target's token after the last known one and each guess
    passes += 1
    accepted = 0
    while accepted < DRAFTS and guesses[len(tokens) + accepted] == drawn[accepted]:
        accepted += 1
    tokens += drawn[: accepted + 1]  # the guesses that the target drew too, and one token of its own
    for sequence in (target, draft):
        sequence.roll_back(len(tokens) - 1)  # the last token has not been computed yet
print(tokenizer.decode(tokens[:end]), f"--- {LENGTH} tokens in {passes} passes of the target", sep="\n")
