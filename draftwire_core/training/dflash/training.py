"""Trainer of DFlash drafters on a frozen target."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel

from draftwire_core.engine.drafters.dflash.dflash_config import DflashConfig
from draftwire_core.engine.drafters.dflash.dflash_files import Dflash, save_dflash
from draftwire_core.training.data.texts import Windows
from draftwire_core.training.dflash.anchored_blocks import AnchoredBlocks
from draftwire_core.training.dflash.initial_network import InitialOptions, initial_network, mask_token_of
from draftwire_core.training.frozen_target.network_shape import most_frequent
from draftwire_core.training.frozen_target.network_trainer import NetworkTrainer
from draftwire_core.training.frozen_target.order import DflashOrder, Say
from draftwire_core.training.frozen_target.preparation import Prepared, say_accuracy, train
from draftwire_core.training.frozen_target.trainer import TrainingOptions

_IGNORED = -100
_SHOWN = 8
"""Windows that an initial network is fitted to."""
_FEWEST_SAMPLES = 20
"""Fewest guesses for a place from which a share is reported."""


@dataclass(frozen=True, slots=True)
class DflashTraining(TrainingOptions):
    """Training options of a DFlash drafter."""

    block: int = 8
    """Rows of a block: the last committed token, and those that it guesses."""
    layers: int = 2
    anchors: int = 32
    """Blocks of each window in a step."""
    mask_token: int = 0
    """The token whose embedding stands for one to be guessed."""
    draft_vocab: int = 0
    """Number of tokens that the drafter can draft, the most frequent ones of the texts; 0 for all."""


class BlockGuesses(NamedTuple):
    """The guesses of some blocks, and the target's distributions for the same tokens."""

    logits: torch.Tensor
    """[windows, blocks, guesses, draft vocabulary]"""
    target: torch.Tensor
    """The target's logits for the same tokens, behind the text before them, [windows, blocks, guesses, vocabulary]."""
    labels: torch.Tensor
    """The text's own tokens, int64 [windows, blocks, guesses]; negative behind its end."""
    there: torch.Tensor
    """Mask of the guesses that count, bool [windows, blocks, guesses]."""


def decay_of(block: int) -> float:
    """Returns the weight of a token's loss relative to that of the token before it.

    The paper's weights fall as exp(-k / g) with g = 4 for blocks of 8, and about half the block for others.
    """
    return math.exp(-2 / block)


class DflashTrainer(NetworkTrainer[DflashConfig]):
    """Trains a drafter on the states between a target's layers, at random places of the texts."""

    def __init__(
        self,
        base: PreTrainedModel,
        windows: Windows,
        directory: Path,
        training: DflashTraining,
        saved_as: torch.dtype,
        network: Dflash | None = None,
    ):
        """Prepares the training, or resumes it; see FrozenTargetTrainer.

        network: to train further, in float32; then the options that shape a network have no effect. Raises
        CheckpointMismatch, and ValueError for options that do not fit the target.
        """
        super().__init__(base, windows, directory, training, saved_as)
        self._save_network = save_dflash
        if network is None:
            vocab_size = int(base.get_output_embeddings().out_features)
            options = InitialOptions(training.block, training.layers, training.mask_token)
            target_ids = most_frequent(windows, training.draft_vocab, vocab_size)
            network = initial_network(base, options, target_ids, windows.labels[:_SHOWN], training.seed)
        self._take(network, train_head=False)
        self._anchors = training.anchors
        self._blocks = AnchoredBlocks(self.network.config, self.network.model)
        decoder = self.network.model.get_decoder()
        self._resume(nn.ModuleList([decoder.layers, decoder.norm, self.network.mapping]))

    def accuracy(self, windows: Windows) -> list[float]:
        """Returns the share of the target's own best tokens that blocks guess at each place, on held-out windows, given
        that the guesses for the places before are the text's own tokens.

        Blocks with so many right guesses are rare at late places. Those with too few samples are left out, and all
        behind them; the first place never is.
        """
        guesses = self.network.config.guesses
        right, counts = torch.zeros(guesses), torch.zeros(guesses)
        with torch.no_grad(), self._computing:
            for labels in windows.labels.split(self._options.batch):
                labels = labels.to(self._base.device)
                for found in self._guesses(labels, torch.arange(labels.shape[1], device=labels.device)):
                    best = self._best(found.logits)
                    before = (best == found.labels).cumprod(-1).bool().roll(1, -1)
                    before[..., 0] = True
                    asked = before & found.there
                    right += ((best == found.target.argmax(-1)) & asked).sum((0, 1)).cpu()
                    counts += asked.sum((0, 1)).cpu()
        enough = max(1, int((counts >= _FEWEST_SAMPLES).sum()))  # counts fall from place to place
        return [float(share) for share in (right / counts.clamp(min=1))[:enough]]

    def _losses(self, labels: torch.Tensor) -> list[torch.Tensor]:
        drawn = torch.rand(labels.shape, generator=torch.Generator().manual_seed(self._options.seed + self.step))
        # Places behind the end of a text come last, and do not count.
        order = drawn.to(labels.device).masked_fill(labels < 0, -1.0).argsort(dim=1, descending=True)
        anchors = order[:, : self._anchors].sort(dim=1).values
        (found,) = self._guesses(labels, anchors, at_once=self._anchors)
        losses = []
        for place in range(found.logits.shape[2]):
            there = found.there[:, :, place]
            loss = self._loss(found.logits[:, :, place][there], found.target[:, :, place][there], reduction="sum")
            losses.append(loss / there.sum().clamp(min=1))
        return losses

    def _guesses(
        self, labels: torch.Tensor, anchors: torch.Tensor, at_once: int | None = None
    ) -> Iterator[BlockGuesses]:
        """Yields the guesses of blocks, some at a time.

        anchors: int64 [windows, blocks], or [blocks] for the same ones in all windows. at_once: as many blocks of each
        window; by default as many as in a step of the training.
        """
        config = self.network.config
        tokens, target, features = self._read(labels)
        padded = nn.functional.pad(labels, (0, config.guesses), value=_IGNORED)
        ahead = torch.arange(config.guesses, device=labels.device)
        for some in anchors.expand(len(labels), -1).split(at_once or self._anchors, dim=1):
            # A guess counts if the text goes on at least to the token before it: then the target's answer is known.
            places = (some.unsqueeze(2) + ahead).flatten(1)
            there = (padded.gather(1, places) >= 0).unflatten(1, (-1, config.guesses))
            labelled = padded.gather(1, places + 1).unflatten(1, (-1, config.guesses))
            places = places.clamp(max=labels.shape[1] - 1)
            answers = target.gather(1, places.unsqueeze(2).expand(-1, -1, target.shape[2]))
            logits = self._blocks.guess(features, tokens.gather(1, some), some)
            yield BlockGuesses(logits, answers.unflatten(1, (-1, config.guesses)), labelled, there)


def run(order: DflashOrder, say: Say) -> list[float]:
    """Trains, writes the drafter, and reports its quality on held-out texts. Raises TrainingError."""

    def make(given: Prepared) -> DflashTrainer:
        mask = order.mask_token
        if mask is None:
            tokenizer = AutoTokenizer.from_pretrained(
                given.checkpoint.directory, local_files_only=True, mistral_format=False
            )
            mask = mask_token_of(tokenizer, int(given.base.get_output_embeddings().out_features))
        training = DflashTraining(
            **order.training(),
            decay=decay_of(order.block),
            block=order.block,
            layers=order.layers,
            anchors=order.anchors,
            mask_token=mask,
            draft_vocab=order.draft_vocab,
        )
        return DflashTrainer(given.base, given.windows, order.out, training, given.saved_as)

    trainer, given = train(order, order.block - 1, say, make)
    accuracy = trainer.accuracy(given.held_out)
    say_accuracy(accuracy, say)
    if len(accuracy) < order.block - 1:
        say(f"token {len(accuracy) + 1} and later ones: too few blocks guess all tokens before")
    say(f"{1 + math.fsum(accumulate(accuracy, mul)):.2f} tokens per block are expected")
    return accuracy
