"""Trainer of EAGLE-3 drafters on a frozen target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel

from draftwire_core.engine.drafters.eagle.eagle_config import EagleConfig, usual_layers
from draftwire_core.engine.drafters.eagle.eagle_files import Eagle, save_eagle
from draftwire_core.engine.drafters.eagle.eagle_model import eagle_model, feature_map
from draftwire_core.engine.drafters.features.draft_network import HEAD, DraftNetwork
from draftwire_core.engine.model.model_facts import architecture_of
from draftwire_core.training.data.texts import Windows
from draftwire_core.training.eagle.unrolled import Unrolled
from draftwire_core.training.frozen_target.network_shape import layers_like, most_frequent, shallow_layers
from draftwire_core.training.frozen_target.network_trainer import NetworkTrainer
from draftwire_core.training.frozen_target.order import EagleOrder, Say
from draftwire_core.training.frozen_target.preparation import Prepared, say_accuracy, train
from draftwire_core.training.frozen_target.trainer import TrainingOptions


@dataclass(frozen=True, slots=True)
class EagleTraining(TrainingOptions):
    """Training options of an EAGLE-3 drafter."""

    ahead: int = 4
    """Steps of drafting that are unrolled."""
    draft_vocab: int = 0
    """Number of tokens that the drafter can draft, the most frequent ones of the texts; 0 for all."""
    aux_layers: tuple[int, ...] = ()
    """The target's layers whose inputs are read, ascending; its number of layers stands for the last one's output.
    Empty for those that EAGLE-3 usually reads."""


class EagleTrainer(NetworkTrainer[EagleConfig]):
    """Trains a drafter on the states between a target's layers."""

    def __init__(
        self,
        base: PreTrainedModel,
        windows: Windows,
        directory: Path,
        training: EagleTraining,
        saved_as: torch.dtype,
        network: Eagle | None = None,
    ):
        """Prepares the training, or resumes it; see FrozenTargetTrainer.

        network: to train further, in float32; then `draft_vocab` and `aux_layers` have no effect. Raises
        CheckpointMismatch, and ValueError for options that do not fit the target, and for a network that cannot be
        trained.
        """
        super().__init__(base, windows, directory, training, saved_as)
        self._save_network = partial(save_eagle, steps=training.ahead)
        self._ahead = training.ahead
        if network is None:
            target_ids = most_frequent(windows, training.draft_vocab, len(base.get_output_embeddings().weight))
            network = _initial(base, target_ids, training)
        self._take(network, train_head=HEAD not in network.lacking)
        model = self.network.model
        feed_back = model.get_decoder().norm if self.network.config.norm_output else nn.Identity()
        self._unrolled = Unrolled(model, feed_back)
        self._resume(nn.ModuleList([model, self.network.mapping]))

    def accuracy(self, windows: Windows) -> list[float]:
        """Returns the share of the target's own best tokens that each drafting step guesses, on held-out windows, given
        that the steps before were right."""
        right = torch.zeros(self._ahead)
        counts = torch.zeros(self._ahead)
        with torch.no_grad(), self._computing:
            for labels in windows.labels.split(self._options.batch):
                for step, (logits, target, there) in enumerate(self._steps(labels.to(self._base.device))):
                    right[step] += (self._best(logits) == target.argmax(-1))[there].sum().cpu()
                    counts[step] += there.sum().cpu()
        return [float(share) for share in right / counts.clamp(min=1)]

    def _losses(self, labels: torch.Tensor) -> list[torch.Tensor]:
        return [self._loss(logits[there], target[there]) for logits, target, there in self._steps(labels)]

    def _steps(self, labels: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yields for each drafting step the drafter's logits, the target's, both [windows, rows, vocabulary], and which
        rows count, bool [windows, rows]."""
        ahead = self._ahead
        tokens, target, features = self._read(labels)
        rows = labels.shape[1] - ahead
        for step, logits in enumerate(self._unrolled.steps(features[:, :rows], tokens[:, 1:], ahead)):
            # Row i has read token i + step + 1, and answers as the target does after it.
            yield logits, target[:, step + 1 : step + 1 + rows], labels[:, step + 1 : step + 1 + rows] >= 0


def _configuration(base: PreTrainedModel, draft_vocab_size: int, aux_layers: tuple[int, ...]) -> EagleConfig:
    """A network of the target's width with one layer like the target's."""
    fields = layers_like(base)
    layers = int(base.config.get_text_config(decoder=True).num_hidden_layers)
    if any(not 0 <= layer <= layers for layer in aux_layers) or list(aux_layers) != sorted({*aux_layers}):
        raise ValueError(f"aux_layers must ascend and be from 0 to {layers}, got {', '.join(map(str, aux_layers))}")
    usual = usual_layers(layers)
    # Shallow targets have no such layers; their last one's output then replaces the one next to the top.
    fitting = usual if 0 <= usual[0] < usual[1] < usual[2] else shallow_layers(layers)
    return EagleConfig(
        layers=LlamaConfig(**fields, num_hidden_layers=1),
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=fields["hidden_size"],
        aux_layers=aux_layers or fitting,
        norm_before_residual=True,
        target_architectures=(architecture_of(base),),
    )


def _initial(base: PreTrainedModel, target_ids: torch.Tensor | None, training: EagleTraining) -> Eagle:
    """Returns a network that guesses the target's own next token: it passes on the highest state that is read, and has
    the target's embedding, last norm and output head."""
    output = base.get_output_embeddings().weight.detach().float().cpu()
    config = _configuration(base, len(output) if target_ids is None else len(target_ids), training.aux_layers)
    torch.manual_seed(training.seed)
    model, mapping = eagle_model(config), feature_map(config, len(config.aux_layers or ()))
    width = config.target_hidden_size
    assert mapping.fc is not None
    with torch.no_grad():
        mapping.fc.weight.zero_()
        mapping.fc.weight[:, -width:] = torch.eye(width)
        model.model.embed_tokens.weight.copy_(base.get_input_embeddings().weight.detach().float().cpu())
        model.lm_head.weight.copy_(output if target_ids is None else output[target_ids])
        for part in (model.model.layers[0].self_attn.o_proj, model.model.layers[0].mlp.down_proj):
            part.weight.mul_(0.1)
    model.float()
    mapping.float()
    return DraftNetwork(config, model, mapping, config.aux_layers or (), target_ids, frozenset())


def run(order: EagleOrder, say: Say) -> list[float]:
    """Trains, writes the drafter, and reports its quality on held-out texts. Raises TrainingError."""

    def make(given: Prepared) -> EagleTrainer:
        training = EagleTraining(
            **order.training(), ahead=order.ahead, draft_vocab=order.draft_vocab, aux_layers=order.layers_read
        )
        return EagleTrainer(given.base, given.windows, order.out, training, given.saved_as)

    trainer, given = train(order, order.ahead, say, make)
    accuracy = trainer.accuracy(given.held_out)
    say_accuracy(accuracy, say)
    return accuracy
