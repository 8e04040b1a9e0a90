"""A recurrent head that learns which states follow the target's states, and so what the target writes next.

The linear map is found at once, by ridge regression. Then the whole head is trained to go on from its own states: it
takes a few steps along a text, and the loss of each is the divergence of its distribution from the target's, which
follows from the target's state at that place. Target and head are in memory together only while texts are read.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from draftwire import Client
from draftwire.errors import NotEnabledError, PermissionDeniedError
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.checkpoint.gguf.gguf_name import GgufName
from draftwire_core.engine.checkpoint.weight_files import weight_files
from draftwire_core.engine.device.host import free_memory
from draftwire_core.engine.drafters.recurrent.recurrent_head import RecurrentHead, inputs_of
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.training.learning.target_reader import TargetReader, VerifierReader
from draftwire_core.training.learning.text_learner import TextTraining
from draftwire_core.training.learning.texts.draft_text import DraftText, read_text
from draftwire_core.training.learning.texts.top_tokens import TopTokens
from draftwire_tools.progress import Pace

_DRAFTED = 4096
"""Most tokens that can be drafted."""
_INNER = 1
"""Width of the SwiGLU layer, as a multiple of the target's."""
_STEPS = 3
"""Steps that the head takes along a text in training."""
_DECAY = 0.8
"""Weight of a step's loss relative to that of the step before it."""
_RIDGE = 1e-3
"""Weight of the squared map in ridge regression, a place of a text being 1."""
_RATE = 10.0
"""Learning rate, as a multiple of a draft model's: the head begins with little."""
_FEWEST, _MOST = 64, 1024
"""Places in texts from which a training step begins."""
_PLACES = 2048
"""Places that go through the head at once."""
_COPY = 1.5
"""Memory that a copy of the target takes at most while it is loaded, as a multiple of its files."""
_READING_SECONDS = 600.0
"""Time to wait in a round until the verifier is idle, so that it reads texts."""
_FEW_SLOTS = 16
"""KV slots of a target that reads no texts here."""
_ANSWER_SECONDS = 30.0
_TELL_SECONDS = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class ReadTexts:
    """Outputs with the target's states, one after the other, each with the last token of its prompt before it: prompts
    are read, but may be many times as long. Places are indices into all of them."""

    tokens: torch.Tensor
    """int64 [places]."""
    embeddings: torch.Tensor
    """The target's, of the tokens, [distinct tokens, hidden]."""
    of_token: torch.Tensor
    """Row of each token in `embeddings`, int64 [places]."""
    states: torch.Tensor
    """[places, hidden], bfloat16."""
    begins: torch.Tensor
    """Places that at least `_STEPS` tokens of the same text follow: int64 [begins]."""

    @classmethod
    def of(cls, texts: Sequence[DraftText], target: TargetReader, known: dict[bytes, torch.Tensor]) -> ReadTexts | None:
        """Has the target read texts, without those that it does not read now; None if these are all.

        known: the states of texts that were read before, by `_key`; those of the others are added. Raises
        DraftwireError.
        """
        read, begins, place = [], [], 0
        for text in texts:
            key, begin = _key(text), text.first - 1
            if key not in known:
                states = target.states(text.tokens.tolist(), begin)
                if states is None:
                    continue
                known[key] = states.cpu().clone()
            read.append(text)
            begins.append(torch.arange(place, place + text.positions + 1 - _STEPS))
            place += text.positions + 1
        if not read:
            return None
        tokens = torch.from_numpy(np.concatenate([text.tokens[text.first - 1 :] for text in read]).astype(np.int64))
        distinct, of_token = tokens.unique(return_inverse=True)
        states = torch.cat([known[_key(text)] for text in read])
        return cls(tokens, target.embeddings(distinct).cpu(), of_token, states, torch.cat(begins))

    def inputs(self, places: torch.Tensor, states: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the head's inputs for the tokens behind places, float32 [places, 2 * hidden]. states: the head's own
        at the places; None for the target's."""
        before = self.states[places].float() if states is None else states
        return inputs_of(before, self.embeddings[self.of_token[places + 1]].float())


class StateLearner:
    """Learns on while its process lives, also from a checkpoint that was not worth its cost in a trial yet."""

    def __init__(
        self, source: str, target: str, training: TextTraining, device: str = "cpu", client: Client | None = None
    ):
        """Learns on from a checkpoint.

        source: directory of a head; empty for one that knows nothing. target: directory, GGUF file or hub id of the
        target. client: of a verifier that is to read the texts, if it scores any. Raises ModelLoadError.
        """
        self.source = source
        self.options = training
        self.before = self.after = 0.0
        """Share of held-out tokens that the head finds likeliest, before and after the last training."""
        self.measured = 0
        """Held-out tokens on which it was measured."""
        self.quantised = False
        self._target, self._device, self._client = target, device, client
        self._head = RecurrentHead.load(source, torch.float32) if source else None
        self._trained = self._head is not None
        self._states: dict[bytes, torch.Tensor] = {}
        """The target's states on the texts of the last round, most of which are those of the next one, too."""

    def example(self, prompt: list[int], output: list[int], top: TopTokens | None = None) -> DraftText | None:
        """Returns a text; None if there is too little to learn in it. top: not needed, since the target's states say
        more."""
        found = read_text(prompt, output, None, TopTokens.none(len(output)))
        return found if found is not None and found.positions > _STEPS else None

    def learn(
        self, learned: Sequence[DraftText], held_out: Sequence[DraftText], seed: int, tell: Callable[[str], None]
    ) -> bool:
        """Trains; returns whether the agreement on held-out texts is better than before. Raises ModelLoadError, and
        DraftwireError if the verifier is lost that reads them."""
        target = self._reader(max(len(text.tokens) for text in (*learned, *held_out)), tell)
        if target is None:
            return False
        most = max(int(text.tokens.max()) for text in (*learned, *held_out))
        if most >= target.vocab_size:
            raise ModelLoadError(
                f"model {self._target}: has {target.vocab_size} tokens, but the texts have one with the id {most}: it "
                "is not the verifier's target (--target)"
            )
        keys = {_key(text) for text in (*learned, *held_out)}
        self._states = {key: states for key, states in self._states.items() if key in keys}
        held, texts = (ReadTexts.of(each, target, self._states) for each in (held_out, learned))
        if texts is None or held is None:
            tell("the head learns nothing: the verifier had no time to read the texts")
            return False
        head = self._head
        if head is None:
            head = RecurrentHead(target.hidden_size, _INNER * target.hidden_size, target.vocab_size, 1)
        written = torch.from_numpy(np.concatenate([text.tokens for text in learned]).astype(np.int64))
        token_ids = frequent_tokens(written, min(_DRAFTED, target.vocab_size))
        head.draft_with(token_ids, target.output_rows(token_ids).cpu())
        for part in (head.enter, head.down):
            part.requires_grad_(True)
        head.to(self._device)
        del target
        self.measured = len(held.begins)
        if self._trained:
            self.before = share_agreed(head, held)
        else:
            fit_map(head, texts)
        self._train(head, texts, seed, tell)
        self.after = share_agreed(head, held)
        self._head, self._trained = head, True
        return self.after > self.before

    def write(self, directory: Path) -> None:
        """Writes what was learned last. Raises OSError."""
        assert self._head is not None, "only after a training"
        try:
            self._head.save(directory, self._target, torch.bfloat16)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)  # a full disk must not stay full
            raise

    def go_back(self) -> None:
        """Does nothing: what was not worth its cost yet is learned on, and tried again."""

    def _reader(self, longest: int, tell: Callable[[str], None]) -> TargetReader | None:
        """Returns what reads the texts: the verifier if it scores any, or else a copy of the target; None without
        memory for that. longest: most tokens of a text."""
        checkpoint, free = Checkpoint.find(self._target), free_memory()
        if self._client is not None:
            with suppress(NotEnabledError, PermissionDeniedError):
                self._client.score([0], top=1, timeout=_ANSWER_SECONDS)
                model = PackedModel.load(checkpoint, slots=_FEW_SLOTS, device=self._device, layers=1)
                return VerifierReader(self._client, model, _READING_SECONDS)
        if free is not None and _COPY * _bytes_of(checkpoint) > free:
            tell(
                f"the head learns nothing: there is no memory for a copy of {self._target} that reads the texts, and "
                "the verifier reads none (--allow-scoring)"
            )
            return None
        return TargetReader(PackedModel.load(checkpoint, slots=longest, device=self._device))

    def _train(self, head: RecurrentHead, texts: ReadTexts, seed: int, tell: Callable[[str], None]) -> None:
        options, places = self.options, len(texts.begins)
        per_step = min(_MOST, max(_FEWEST, math.ceil(options.epochs * places / options.steps)))
        steps = min(options.steps, math.ceil(options.epochs * places / per_step))
        weights = [each for each in head.parameters() if each.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        generator = torch.Generator().manual_seed(seed)
        order = torch.cat([texts.begins[torch.randperm(places, generator=generator)] for _ in range(options.epochs)])
        begun, told, pace = time.process_time(), time.monotonic(), Pace()
        for step in range(steps):
            spent = (time.process_time() - begun) / options.seconds
            if spent >= 1:
                break
            done = max(step / steps, spent)
            warm = min(1.0, (step + 1) / options.warmup)
            for group in optimizer.param_groups:
                group["lr"] = _RATE * options.learning_rate * warm * (1 + math.cos(math.pi * done)) / 2
            loss = unrolled_loss(head, texts, order[step * per_step : (step + 1) * per_step])
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if time.monotonic() - told >= _TELL_SECONDS or step == steps - 1:
                told = time.monotonic()
                tell(f"step {step + 1} of {steps}, loss {loss.item():.3f} ({pace.of(max((step + 1) / steps, spent))})")


def _key(text: DraftText) -> bytes:
    return text.first.to_bytes(4) + text.tokens.tobytes()


def _bytes_of(checkpoint: Checkpoint) -> int:
    gguf = checkpoint.gguf
    parts = [] if gguf is None else [gguf.with_name(name) for name in GgufName.of(gguf.name).all_parts()]
    return sum(each.stat().st_size for each in parts or weight_files(checkpoint) if each.is_file())


def frequent_tokens(tokens: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the ids of the most frequent tokens, int64 [count], and where there are fewer the lowest other ids, which
    merges of frequent characters have. tokens: int64 [places]."""
    times = torch.bincount(tokens, minlength=count)
    return times.argsort(descending=True, stable=True)[:count].sort().values


def fit_map(head: RecurrentHead, texts: ReadTexts) -> None:
    """Sets the head's linear map to the ridge regression of the target's next state on state and token."""
    width = 2 * head.hidden_size + 1
    squares = torch.zeros(width, width)
    products = torch.zeros(width, head.hidden_size)
    for places in texts.begins.split(_PLACES):
        inputs = nn.functional.pad(texts.inputs(places), (0, 1), value=1.0)
        squares += inputs.T @ inputs
        products += inputs.T @ texts.states[places + 1].float()
    squares.diagonal()[:-1] += _RIDGE * len(texts.begins)
    found = torch.linalg.solve(squares, products)
    with torch.no_grad():
        head.enter.weight[: head.hidden_size].copy_(found[:-1].T)
        head.enter.bias[: head.hidden_size].copy_(found[-1])


def unrolled_loss(head: RecurrentHead, texts: ReadTexts, places: torch.Tensor) -> torch.Tensor:
    """Returns the mean divergence of the head from the target over `_STEPS` steps from places, in nats per step, each
    step weighted by `_DECAY`, up to a constant: a cross-entropy."""
    device = head.down.weight.device
    total, states = torch.zeros((), device=device), None
    for ahead in range(_STEPS):
        here = places + ahead
        states = head.advance(texts.inputs(here, None if states is None else states.cpu()).to(device))
        with torch.no_grad():
            wanted = head.logits(texts.states[here + 1].float().to(device)).softmax(-1)
        total = total + _DECAY**ahead * nn.functional.cross_entropy(head.logits(states), wanted)
    return total


def share_agreed(head: RecurrentHead, texts: ReadTexts) -> float:
    """Returns the share of tokens, those behind the next ones of places, that the head finds likeliest."""
    device, right = head.down.weight.device, 0
    with torch.no_grad():
        for places in texts.begins.split(_PLACES):
            best = head.logits(head.advance(texts.inputs(places).to(device))).argmax(-1)
            right += int((head.token_ids.to(device)[best].cpu() == texts.tokens[places + 2]).sum())
    return right / max(1, len(texts.begins))
