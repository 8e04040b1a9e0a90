"""Trainer of EAGLE-3 drafters on a frozen target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel

from draft_training.data.texts import Windows
from draft_training.data.unfinished_training import UnfinishedTraining, identity_of, rate
from draft_training.eagle.unrolled import Unrolled
from speculative_engine.drafters.eagle.eagle_config import EagleConfig, usual_layers
from speculative_engine.drafters.eagle.eagle_files import save_eagle
from speculative_engine.drafters.eagle.eagle_model import FeatureMap, eagle_model
from speculative_engine.model.shallow_model import decoder_layers

_FIXED_ROPE = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class EagleTraining:
    """Training options of an EAGLE-3 drafter."""

    ahead: int = 4
    """Steps of drafting that are unrolled."""
    draft_vocab: int = 0
    """Number of tokens that the drafter can draft, the most frequent ones of the texts; 0 for all."""
    steps: int = 300
    batch: int = 8
    """Windows of a step."""
    window: int = 256
    """Tokens of a window."""
    learning_rate: float = 1e-3
    """Peak learning rate; it rises during the warm-up and decays to zero."""
    step_decay: float = 0.8
    """Weight of a drafting step's loss relative to that of the step before."""
    seed: int = 0


class Progress(NamedTuple):
    """Progress of a training."""

    step: int
    losses: list[float]
    """Cross-entropy with the target's distribution of each drafting step."""
    seconds: float
    """Seconds since this process began to train."""


class EagleTrainer:
    """Trains a drafter; resumes from the checkpoint of an earlier process if the directory holds one."""

    def __init__(
        self, base: PreTrainedModel, windows: Windows, directory: Path, training: EagleTraining, saved_as: torch.dtype
    ):
        """Prepares the training, or resumes it.

        base: the target; it is not changed. saved_as: data type of the written tensors. Raises CheckpointMismatch, and
        ValueError for options that do not fit the target.
        """
        self._base: Any = base.eval().requires_grad_(False)
        reduced = base.dtype in (torch.bfloat16, torch.float16)
        self._computing = torch.autocast(base.device.type, base.dtype if reduced else None, enabled=reduced)
        """The weights are float32; their products are computed in the base's data type."""
        self._windows = windows
        self._directory = directory
        self._training = training
        self._saved_as = saved_as
        output = base.get_output_embeddings().weight
        self._target_ids = _most_frequent(windows, training.draft_vocab, len(output))
        """The target's id of each draft token; None for the whole vocabulary."""
        self.config = _configuration(base, len(output) if self._target_ids is None else len(self._target_ids))
        self.model, self.mapping = _initial(self.config, base, self._target_ids, training.seed)
        self._trained = nn.ModuleList([self.model, self.mapping])
        weights = [weight for weight in self._trained.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(weights, lr=training.learning_rate, weight_decay=0.0)
        self._unrolled = Unrolled(self.model, nn.Identity())
        self._unfinished = UnfinishedTraining(
            directory, identity_of(training, windows, output), self._trained, self._optimizer
        )
        self.step = self._unfinished.resume()
        """Steps taken."""

    def train(self, report: Callable[[Progress], None], *, every: int = 10, save_every: int = 100) -> None:
        """Takes the remaining steps, and writes the drafter.

        every: steps between two reports. save_every: steps between two checkpoints.
        """
        started = time.perf_counter()
        training = self._training
        while self.step < training.steps:
            for group in self._optimizer.param_groups:
                group["lr"] = training.learning_rate * rate(self.step, training.steps)
            labels = self._windows.batch(self.step, training.batch, training.seed).to(self._base.device)
            losses = self._losses(labels)
            total = sum(training.step_decay**index * loss for index, loss in enumerate(losses))
            self._optimizer.zero_grad(set_to_none=True)
            total.backward()
            self._optimizer.step()
            self.step += 1
            if self.step % every == 0 or self.step == training.steps:
                report(Progress(self.step, [float(loss.detach()) for loss in losses], time.perf_counter() - started))
            if self.step % save_every == 0 and self.step < training.steps:
                self._unfinished.save(self.step)
        self.save()
        self._unfinished.end()

    def save(self) -> None:
        """Writes the drafter as it is."""
        save_eagle(
            self._directory,
            self.config,
            (self.model, self.mapping),
            self._target_ids,
            target=str(self._base.config.name_or_path),
            steps=self._training.ahead,
            dtype=self._saved_as,
        )

    def accuracy(self, windows: Windows) -> list[float]:
        """Returns the share of the target's own best tokens that each drafting step guesses, on held-out windows, given
        that the steps before were right."""
        right = torch.zeros(self._training.ahead)
        counts = torch.zeros(self._training.ahead)
        with torch.no_grad(), self._computing:
            for labels in windows.labels.split(self._training.batch):
                for step, (logits, target, there) in enumerate(self._steps(labels.to(self._base.device))):
                    best = logits.argmax(-1)
                    if self._target_ids is not None:
                        best = self._target_ids.to(best.device)[best]
                    right[step] += (best == target.argmax(-1))[there].sum().cpu()
                    counts[step] += there.sum().cpu()
        return [float(share) for share in right / counts.clamp(min=1)]

    def _losses(self, labels: torch.Tensor) -> list[torch.Tensor]:
        losses = []
        with self._computing:
            for logits, target, there in self._steps(labels):
                wanted = target[there] if self._target_ids is None else target[there][:, self._target_ids]
                losses.append(nn.functional.cross_entropy(logits[there].float(), wanted.float().softmax(-1)))
        return losses

    def _steps(self, labels: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yields for each drafting step the drafter's logits, the target's, both [windows, rows, vocabulary], and which
        rows count, bool [windows, rows]."""
        ahead = self._training.ahead
        tokens = labels.clamp(min=0)
        with torch.no_grad(), _read(self._base, self.config.aux_layers or ()) as read:
            target = self._base(tokens, use_cache=False).logits
        features = self.mapping(torch.cat([read[layer] for layer in self.config.aux_layers or ()], dim=-1).float())
        rows = labels.shape[1] - ahead
        for step, logits in enumerate(self._unrolled.steps(features[:, :rows], tokens[:, 1:], ahead)):
            # Row i has read token i + step + 1, and answers as the target does after it.
            yield logits, target[:, step + 1 : step + 1 + rows], labels[:, step + 1 : step + 1 + rows] >= 0


@contextmanager
def _read(base: PreTrainedModel, aux_layers: tuple[int, ...]) -> Iterator[dict[int, torch.Tensor]]:
    """Collects the states that enter layers of `base` within the context, [windows, length, hidden], by layer."""
    layers = decoder_layers(base)
    found: dict[int, torch.Tensor] = {}

    def entering(index: int) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found[index] = args[0] if args else kwargs["hidden_states"]

        return hook

    def left(_: nn.Module, args: Any, out: Any) -> None:
        found[len(layers)] = out[0] if isinstance(out, tuple) else out

    hooks = [
        layers[index].register_forward_pre_hook(entering(index), with_kwargs=True)
        for index in set(aux_layers)
        if index < len(layers)
    ]
    hooks.append(layers[-1].register_forward_hook(left))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _configuration(base: PreTrainedModel, draft_vocab_size: int) -> EagleConfig:
    """A network of the target's width with one layer like the target's."""
    text = base.config.get_text_config(decoder=True)
    layers, width = int(text.num_hidden_layers), int(base.get_output_embeddings().in_features)
    heads = int(text.num_attention_heads)
    rope = getattr(text, "rope_parameters", None) or {}
    config = LlamaConfig(
        vocab_size=int(base.get_output_embeddings().out_features),
        hidden_size=width,
        intermediate_size=int(getattr(text, "intermediate_size", None) or 4 * width),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or width // heads),
        max_position_embeddings=int(getattr(text, "max_position_embeddings", None) or 2048),
        rms_norm_eps=float(getattr(text, "rms_norm_eps", 1e-6)),
        rope_parameters=dict(rope) if rope.get("rope_type") in _FIXED_ROPE else None,
        tie_word_embeddings=False,
    )
    usual = usual_layers(layers)
    # Shallow targets have no such layers; their last one's output then replaces the one next to the top.
    aux = usual if 0 <= usual[0] < usual[1] < usual[2] else tuple(sorted({min(1, layers), layers // 2, layers}))
    return EagleConfig(
        layers=config,
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=width,
        aux_layers=aux,
        norm_before_residual=True,
        target_architectures=(type(base).__name__,),
    )


def _initial(
    config: EagleConfig, base: PreTrainedModel, target_ids: torch.Tensor | None, seed: int
) -> tuple[PreTrainedModel, FeatureMap]:
    """Returns a network that guesses the target's own next token: it passes on the highest state that is read, and has
    the target's embedding, last norm and output head."""
    torch.manual_seed(seed)
    model, mapping = eagle_model(config), FeatureMap(config, len(config.aux_layers or ()))
    width = config.target_hidden_size
    output = base.get_output_embeddings().weight.detach().float().cpu()
    with torch.no_grad():
        mapping.fc.weight.zero_()
        mapping.fc.weight[:, -width:] = torch.eye(width)
        model.model.embed_tokens.weight.copy_(base.get_input_embeddings().weight.detach().float().cpu())
        model.lm_head.weight.copy_(output if target_ids is None else output[target_ids])
        for part in (model.model.layers[0].self_attn.o_proj, model.model.layers[0].mlp.down_proj):
            part.weight.mul_(0.1)
    model.model.embed_tokens.requires_grad_(False)
    return model.float().to(base.device), mapping.float().to(base.device)


def _most_frequent(windows: Windows, count: int, vocab_size: int) -> torch.Tensor | None:
    """The ids of the most frequent tokens of the texts, in order, int64 [count]; None if that is the whole vocabulary.

    Raises ValueError for more tokens than there are.
    """
    if count > vocab_size:
        raise ValueError(f"a draft vocabulary of {count} tokens is larger than the target's, {vocab_size}")
    if count in (0, vocab_size):
        return None
    labels = windows.labels[windows.labels >= 0]
    order = torch.bincount(labels, minlength=vocab_size).argsort(descending=True, stable=True)
    return order[:count].sort().values
