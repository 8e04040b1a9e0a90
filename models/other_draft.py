"""Train a draft with a tokenizer of its own on the bundled target: `draft-other`, for translating drafters.

    python models/other_draft.py --minutes 15 --out /tmp/other

Its tokenizer splits text by GPT-2's pattern and has 3072 entries. It starts from the bundled draft: its layers, and for
each entry the mean of the embeddings of the tokens that spell the same text. Then it learns the target's next token in
entries of its own. Where a token of the one ends with a token of the other, each token of the target counts for the
entry that its text begins with, but the true one for the true entry; elsewhere the true entry is all there is to learn.
"""

from __future__ import annotations

import argparse
import random
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

import tokenizer as tokenizer_recipe
from corpus import SEED, documents
from export import write_model
from learner import Learner
from llama import Llama, config_of
from train import DRAFT, REPLAYS, TARGET, imitate, logits_of

HERE = Path(__file__).parent
VOCABULARY = 3072
END_OF_TEXT = "</s>"
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # GPT-2's
ROWS, TOKENS = 16, 384  # of a batch: windows of text, and the target's tokens in each
WINDOW = 4 * TOKENS  # characters that are enough for so many
KEPT_ANSWERS = 40
RATE = 0.5  # factor of the learning rates: it does not start from nothing


@dataclass(frozen=True)
class Batch:
    """Windows of text in both vocabularies, padded with 0 at the end."""

    target_ids: Tensor  # [ROWS, TOKENS + 1]
    ids: Tensor  # [ROWS, time + 1] of the draft
    aligned: Tensor  # [pairs, 2]: position in the flattened target_ids[:, :-1], in ids[:, :-1], after the same text
    unaligned: Tensor  # [others]: the other positions in ids[:, :-1] that are no padding


def spelled(vocabulary: Tokenizer, ids: list[int]) -> list[int]:
    """Bytes of each token. A byte-level vocabulary spells every byte as one character; the end of text has none."""
    return [len(vocabulary.id_to_token(token)) if token else 0 for token in ids]


def batches(target: Tokenizer, other: Tokenizer) -> Iterator[Batch]:
    """Windows of the training documents for ever, in an order that follows from the seed."""
    chance = random.Random(SEED)
    texts = [document.text for document in documents() if not document.held_out]
    sizes = list(accumulate(map(len, texts)))
    while True:
        rows: list[tuple[list[int], list[int]]] = []
        while len(rows) < ROWS:
            text = texts[bisect_left(sizes, chance.randint(1, sizes[-1]))]
            start = text.rfind("\n", 0, chance.randint(0, max(0, len(text) - WINDOW // 2))) + 1
            ids = [0, *target.encode(text[start : start + WINDOW]).ids][: TOKENS + 1]
            if len(ids) == TOKENS + 1:
                rows.append((ids, [0, *other.encode(target.decode(ids)).ids]))
        longest = max(len(ids) for _, ids in rows)
        padded = torch.tensor([ids + [0] * (longest - len(ids)) for _, ids in rows])
        aligned, unaligned = [], []
        for row, (target_ids, ids) in enumerate(rows):
            ends = {end: place for place, end in enumerate(accumulate(spelled(target, target_ids[:-1])))}
            for place, end in enumerate(accumulate(spelled(other, ids[:-1]))):
                position = row * (longest - 1) + place
                if end in ends:
                    aligned.append((row * TOKENS + ends[end], position))
                else:
                    unaligned.append(position)
        yield Batch(
            torch.tensor([ids for ids, _ in rows]), padded, torch.tensor(aligned), torch.tensor(unaligned, dtype=int)
        )


def wanted(batch: Batch, probabilities: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
    """The draft's goal in training: positions in ids[:, :-1], and its probabilities [positions, VOCABULARY] there.

    probabilities: the target's [ROWS * TOKENS, vocabulary]. begins: the entry each of its tokens begins with.
    """
    truth = batch.ids[:, 1:].flatten()
    there, here = batch.aligned.unbind(1)
    theirs = probabilities[there]
    result = torch.zeros(len(here) + len(batch.unaligned), VOCABULARY, dtype=theirs.dtype)
    result[: len(here)].index_add_(1, begins, theirs)
    true_token = batch.target_ids[:, 1:].flatten()[there]
    share = theirs.gather(1, true_token.unsqueeze(1)).squeeze(1)
    rows = torch.arange(len(here))
    result[rows, begins[true_token]] -= share
    result[rows, truth[here]] += share
    result[torch.arange(len(here), len(result)), truth[batch.unaligned]] = 1
    return torch.cat((here, batch.unaligned)), result


def transplanted(target: Tokenizer, other: Tokenizer) -> Llama:
    """The bundled draft with the other tokenizer's entries."""
    model = Llama(config_of(**DRAFT, vocabulary=VOCABULARY), torch.Generator().manual_seed(SEED))
    weights = load_file(HERE / "draft" / "model.safetensors")
    embeddings = weights["model.embed_tokens.weight"].float()
    spellings = [target.encode(other.decode([entry])).ids or [0] for entry in range(VOCABULARY)]
    weights["model.embed_tokens.weight"] = torch.stack([embeddings[ids].mean(0) for ids in spellings])
    model.load_state_dict(weights)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--out", type=Path, required=True, help="where the tokenizer is kept while it trains")
    parser.add_argument("--into", type=Path, default=HERE / "draft-other")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not (options.out / "tokenizer.json").exists():
        made = tokenizer_recipe.train(VOCABULARY, PATTERN, END_OF_TEXT)
        tokenizer_recipe.save(made, options.out, end_of_text=END_OF_TEXT)
    target_tokenizer = Tokenizer.from_file(str(HERE / "target" / "tokenizer.json"))
    other = Tokenizer.from_file(str(options.out / "tokenizer.json"))
    target = Llama(config_of(**TARGET, vocabulary=tokenizer_recipe.VOCABULARY), torch.Generator())
    target.load_state_dict(load_file(HERE / "target" / "model.safetensors"))
    learner = Learner(transplanted(target_tokenizer, other))
    spellings = [other.encode(target_tokenizer.decode([token])).ids for token in range(tokenizer_recipe.VOCABULARY)]
    begins = torch.tensor([ids[0] if ids else 0 for ids in spellings])

    chance, step, began = random.Random(SEED), 0, time.monotonic()
    answers: list[tuple[Batch, Tensor, Tensor]] = []
    for batch in batches(target_tokenizer, other):
        with torch.no_grad():
            probabilities = torch.softmax(logits_of(target, batch.target_ids), dim=-1)
        answer = (batch, *wanted(batch, probabilities, begins))
        # The target's answers cost more than learning from them: go back to some that were given before.
        for given in (answer, *(chance.choice(answers) for _ in range(REPLAYS if answers else 0))):
            share = min(1.0, (time.monotonic() - began) / (60 * options.minutes))
            learned, positions, wished = given
            imitate(logits_of(learner.model, learned.ids)[positions], wished)
            learner.update(RATE * min(1.0, (step + 1) / 40) * (1 - share))
            step += 1
        if len(answers) == KEPT_ANSWERS:
            answers.pop(chance.randrange(KEPT_ANSWERS))
        answers.append(answer)
        if step % 20 <= REPLAYS:
            with torch.no_grad():
                right = logits_of(learner.model, batch.ids).argmax(-1) == batch.ids[:, 1:].flatten()
            print(f"step {step} at {100 * share:.1f} %: {100 * float(right.float().mean()):.1f} % right", flush=True)
        if share >= 1:
            break
    write_model(options.into, learner.model.config, learner.model.state_dict(), options.out)


if __name__ == "__main__":
    main()
