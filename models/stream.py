"""The training text as token batches, in an order that follows from the seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

import tokenizer as tokenizer_recipe
from corpus import SEED, documents

STEP_TOKENS = 8192  # of all workers together
PIECE, GROUP = 1024, 32  # the training stream is cut into pieces of this many tokens, shuffled and taken in groups


def prepare(out: Path) -> tuple[Path, Path, float]:
    """Tokenizer and token files below `out`, made on the first call: (training, held-out, bytes per held-out token)."""
    files = out / "training.npy", out / "held_out.npy"
    if not (out / "tokenizer.json").exists():
        tokenizer_recipe.save(tokenizer_recipe.train(), out)
    if not all(file.exists() for file in files):
        vocabulary = Tokenizer.from_file(str(out / "tokenizer.json"))
        end = vocabulary.token_to_id(tokenizer_recipe.END_OF_TEXT)
        for file, held_out in zip(files, (False, True), strict=True):
            chosen = [d for d in documents() if d.held_out == held_out]
            order = np.random.default_rng(SEED).permutation(len(chosen))
            encoded = vocabulary.encode_batch_fast([chosen[i].text for i in order])
            ids = [np.array([*encoding.ids, end], dtype=np.uint16) for encoding in encoded]
            np.save(file, np.concatenate(ids))
    size = sum(len(d.text.encode()) for d in documents() if d.held_out)
    return *files, size / len(np.load(files[1], mmap_mode="r"))


class Stream:
    """Training batches in a fixed shuffled order. Every piece is used once before any is used again."""

    def __init__(self, file: Path) -> None:
        tokens = np.load(file, mmap_mode="r")
        self.pieces = tokens[: (len(tokens) - 1) // PIECE * PIECE + 1]
        self.count = len(self.pieces) // PIECE // GROUP * GROUP

    def batch(self, tokens_before: int, length: int) -> Tensor:
        """The step after `tokens_before` tokens: ids [STEP_TOKENS / length, length + 1]."""
        group, step = divmod(tokens_before // STEP_TOKENS, GROUP * PIECE // STEP_TOKENS)
        epoch, group = divmod(group, self.count // GROUP)
        order = np.random.default_rng((SEED, epoch)).permutation(len(self.pieces) // PIECE)
        starts = order[group * GROUP : (group + 1) * GROUP] * PIECE
        starts = (np.arange(0, PIECE, length)[:, None] + starts[None, :]).flatten()
        rows = STEP_TOKENS // length
        chosen = starts[step * rows : (step + 1) * rows]
        return torch.from_numpy(np.stack([self.pieces[s : s + length + 1] for s in chosen]).astype(np.int64))
