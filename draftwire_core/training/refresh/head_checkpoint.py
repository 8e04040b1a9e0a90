"""The checkpoint of an EAGLE-3 or DFlash drafter, and the target that it was made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.plain_files import json_object
from draftwire_core.engine.drafters.dflash.dflash_config import is_dflash
from draftwire_core.engine.drafters.dflash.dflash_files import Dflash, load_dflash
from draftwire_core.engine.drafters.eagle.eagle_config import ORIGINAL_ARCHITECTURE, SPECULATORS_TYPE
from draftwire_core.engine.drafters.eagle.eagle_files import Eagle, load_eagle
from draftwire_core.engine.drafters.features.config_fields import CONFIG
from draftwire_core.engine.drafters.features.draft_network import TargetShape
from draftwire_core.engine.model.model_facts import architecture_of
from draftwire_core.engine.model.reading.model_to_train import target_to_train_on
from draftwire_core.engine.text.tokenizer import Tokenizer

_AHEAD = 4
"""Steps of drafting that an EAGLE-3 drafter learns if its checkpoint does not say."""


def is_head(source: str) -> bool:
    """Returns whether a checkpoint is that of an EAGLE-3 or DFlash drafter, by its config.json.

    Raises ModelLoadError, also for drafters of other kinds that read a target's hidden states.
    """
    checkpoint = Checkpoint.find(source)
    fields = {} if checkpoint.gguf is not None else _fields(source, checkpoint)
    if is_dflash(fields) or _is_eagle(fields):
        return True
    if "speculators_model_type" in fields:
        kind = fields["speculators_model_type"]
        raise ModelLoadError(
            f"draft {source}: a drafter of the kind {kind!r} cannot be trained, only EAGLE-3 and DFlash"
        )
    return False


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """A drafter as its files have it, with its target to be trained on."""

    base: PreTrainedModel
    """The target."""
    tokenizer: Tokenizer
    """The target's."""
    network: Dflash | Eagle
    """In float32."""
    ahead: int
    """Tokens ahead that it was trained to guess."""
    saved_as: torch.dtype
    """Data type of its tensors."""
    has_tokenizer: bool
    """Whether its directory has a tokenizer."""

    @classmethod
    def load(cls, source: str, target: str | None, device: str) -> HeadCheckpoint:
        """Loads a drafter from a directory or hub id.

        target: directory or hub id of its target; None for the one that its config.json names. Raises ModelLoadError.
        """
        place = Checkpoint.find(source)
        fields = _fields(source, place)
        given = Checkpoint.find(target if target is not None else _named_target(source, fields))
        try:
            base = target_to_train_on(given, torch.device(device))
            load = load_dflash if is_dflash(fields) else load_eagle
            network: Dflash | Eagle = load(place.directory, _shape_of(base), torch.float32)
            if len(network.model.get_decoder().layers) != 1 and not is_dflash(fields):
                raise ValueError("only EAGLE-3 drafters with one layer can be trained")
        except (ValueError, OSError) as error:
            raise ModelLoadError(f"draft {source}: {error}") from error
        dtype = getattr(torch, str(fields.get("dtype") or fields.get("torch_dtype")), torch.float32)
        has_tokenizer = (place.directory / "tokenizer.json").exists()
        return cls(base, Tokenizer.load(given), network, _ahead(fields), dtype, has_tokenizer)


def _fields(source: str, checkpoint: Checkpoint) -> dict[str, Any]:
    try:
        return json_object(checkpoint.directory / CONFIG)
    except (ValueError, OSError) as error:
        raise ModelLoadError(f"draft {source}: {error}") from error


def _is_eagle(fields: dict[str, Any]) -> bool:
    kind, names = fields.get("speculators_model_type"), fields.get("architectures") or ()
    return kind == SPECULATORS_TYPE or (kind is None and ORIGINAL_ARCHITECTURE in names)


def _named_target(source: str, fields: dict[str, Any]) -> str:
    """Returns the target that a drafter in the layout of speculators names. Raises ModelLoadError."""
    verifier = (fields.get("speculators_config") or {}).get("verifier") or {}
    name = verifier.get("name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelLoadError(f"draft {source}: does not say its target: name it with --target")
    return name


def _ahead(fields: dict[str, Any]) -> int:
    methods = (fields.get("speculators_config") or {}).get("proposal_methods") or [{}]
    return int(methods[0].get("speculative_tokens") or _AHEAD)


def _shape_of(base: PreTrainedModel) -> TargetShape:
    output = base.get_output_embeddings()
    layers = int(base.config.get_text_config(decoder=True).num_hidden_layers)
    return TargetShape(layers, int(output.in_features), int(output.out_features), architecture_of(base))
