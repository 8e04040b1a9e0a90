"""The text part of a multimodal checkpoint, as a model of its own.

Only its weights are read: the skeleton of the whole model gives away its towers and projectors before transformers
reads anything, and keeps transformers' own rules of what a checkpoint's tensors are called. The decoder and the output
head then move into the causal model of the text configuration, or where transformers has none, into one of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, GenerationMixin, PretrainedConfig, PreTrainedModel, TimmWrapperModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    MODEL_MAPPING,
)

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.model.experts.experts import StoredExperts
from draftwire_core.engine.model.linear.linear_weight import StoredLinear

_NEEDED = {"Gemma3nModel": ("embed_vision", "embed_audio")}
"""Small modules that a class's code runs on every text, for tokens that a text does not have. They are not held."""
_TRIED = 8
"""Tokens of the trial that compares the text part with the whole model."""
_FAR, _FAR_COARSE = 0.001, 0.05
"""Largest error of logits in the trial, in their standard deviations; the latter for 16-bit types. Both run the same
operations, but may scale embeddings in another order."""


class TextDecoder(PreTrainedModel, GenerationMixin):
    """A decoder with an output head, for text configurations that have no causal model in transformers."""

    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(self, config: PretrainedConfig, model: nn.Module, lm_head: nn.Module):
        super().__init__(config)
        self.model = model
        self.lm_head = lm_head
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)

    def get_output_embeddings(self) -> nn.Module:
        """The output head."""
        return self.lm_head

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """input_ids, position_ids: int64 [batch, tokens]. logits_to_keep: number of last tokens, or indices of tokens,
        whose logits to return; 0 for all."""
        hidden = self.model(input_ids=input_ids, position_ids=position_ids, use_cache=use_cache, **kwargs)[0]
        kept = slice(-logits_to_keep or None, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, kept])
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return CausalLMOutput(logits=logits)


def whole_class(config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """The class of the multimodal model that a configuration is of; None for models of text alone."""
    if config.is_encoder_decoder or config.get_text_config(decoder=True) is config:
        return None
    for mapping in (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING):
        found: type[PreTrainedModel] | None = mapping.get(type(config), None)
        if found is not None:
            return found
    return None


def text_class(config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """The class of a model of text alone that transformers lists among multimodal ones only; None for others."""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or config.get_text_config(decoder=True) is not config:
        return None
    found: type[PreTrainedModel] | None = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    return found if found is not None and found.__name__.endswith("ForCausalLM") else None


def read_text_part(
    name: str, config: PretrainedConfig, read: Callable[[type[PreTrainedModel]], PreTrainedModel]
) -> PreTrainedModel:
    """Reads the text part of a multimodal model. `text_part_of` of the result is the name of the whole model's class.

    name: of the checkpoint, for messages. config: of the whole model, for which `whole_class` has a class. read: reads
    the checkpoint as the class that it is given. Raises ModelLoadError if the text part alone does not give the whole
    model's logits, and what `read` raises.
    """
    whole = whole_class(config)
    assert whole is not None
    model = read(_without_towers(whole)).eval()
    with _stand_ins(model):
        expected = _logits(name, whole, model, position_ids=None)
    # The causal model first: its layers may be compiled. A whole model may leave out what that one does to logits.
    for text in _text_models(model, config.get_text_config(decoder=True)):
        with _stand_ins(text):
            found = _logits(name, whole, text, torch.arange(_TRIED, device=text.device).unsqueeze(0))
        far = _FAR if model.dtype == torch.float32 else _FAR_COARSE
        if (found - expected).square().mean().sqrt() <= far * expected.std():  # false of NaN
            text.generation_config = model.generation_config
            text.text_part_of = whole.__name__
            return text.eval()
    raise ModelLoadError(
        f"model {name}: the text part of {whole.__name__} alone gives other logits than the whole model does for a text"
    )


def _without_towers(whole: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """A class of models of which only the text part has modules. It has the name of `whole`, by which transformers
    finds the names of tensors."""

    def init(self: PreTrainedModel, config: PretrainedConfig, *args: Any, **kwargs: Any) -> None:
        with without_timm():
            whole.__init__(self, config, *args, **kwargs)
        decoder = _decoder(self)
        kept = {id(module) for part in (decoder, self.get_output_embeddings()) for module in _path_to(self, part)}
        inside = {id(module) for module in decoder.modules()}
        for module in _path_to(self, decoder)[:-1]:
            for name, child in list(module.named_children()):
                if id(child) not in kept | inside and name not in _NEEDED.get(type(module).__name__, ()):
                    delattr(module, name)

    return type(whole.__name__, (whole,), {"__init__": init, "__module__": whole.__module__})


@contextmanager
def without_timm() -> Iterator[None]:
    """Makes vision towers of the package timm empty modules within the context, so that the package is not needed."""
    given = AutoModel.__dict__["from_config"]

    def from_config(cls: Any, /, config: PretrainedConfig, **kwargs: Any) -> nn.Module:
        if MODEL_MAPPING.get(type(config), None) is TimmWrapperModel:
            return nn.Module()
        made: nn.Module = given.__func__(cls, config, **kwargs)
        return made

    AutoModel.from_config = classmethod(from_config)
    try:
        yield
    finally:
        AutoModel.from_config = given


@contextmanager
def _stand_ins(model: nn.Module) -> Iterator[None]:
    """Lets a model run within the context whose quantised weights no product reads before they are packed: such a layer
    repeats its inputs, and a mixture of such experts returns them. The trial compares code, for which any weights do.
    """
    stored = [module for module in model.modules() if isinstance(module, StoredLinear | StoredExperts)]
    for module in stored:
        module.forward = partial(_repeated, module) if isinstance(module, StoredLinear) else _returned
    try:
        yield
    finally:
        for module in stored:
            del module.forward


def _repeated(layer: StoredLinear, inputs: torch.Tensor) -> torch.Tensor:
    return inputs[..., torch.arange(layer.out_features, device=inputs.device) % layer.in_features]


def _returned(hidden: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    return hidden


def _path_to(model: nn.Module, part: nn.Module) -> list[nn.Module]:
    """The modules from `model` down to one inside it."""
    name = _name_of(model, part)
    steps = name.split(".")
    return [model.get_submodule(".".join(steps[:count])) for count in range(len(steps) + 1)]


def _name_of(model: nn.Module, part: nn.Module) -> str:
    name: str = next(name for name, module in model.named_modules() if module is part)
    return name


def _decoder(model: PreTrainedModel) -> nn.Module:
    """The text decoder of a whole model. Raises ValueError if its class declares none."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    inside = {id(module) for module in model.modules()}
    if decoder is model or not {id(decoder), id(head)} <= inside:
        raise ValueError(f"{type(model).__name__} has no text part that could run alone")
    return decoder


def _text_models(model: PreTrainedModel, config: PretrainedConfig) -> Iterator[PreTrainedModel]:
    """Causal models of the decoder and the output head of `model`. config: of the text part."""
    decoder, head = _decoder(model), model.get_output_embeddings()
    causal = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if isinstance(decoder, causal or ()):
        yield decoder
        return
    if causal is not None:
        with torch.device("meta"):
            text: PreTrainedModel = causal(config)
        own = next((module for module in text.modules() if type(module) is type(decoder)), None)
        if own is not None:
            text.set_submodule(_name_of(text, own), decoder)
            text.set_submodule(_name_of(text, text.get_output_embeddings()), head)
            yield text
    yield TextDecoder(config, decoder, head)


def _logits(
    name: str, whole: type[PreTrainedModel], model: PreTrainedModel, position_ids: torch.Tensor | None
) -> torch.Tensor:
    """Logits of a short text, float32 [1, tokens, vocabulary]. Raises ModelLoadError."""
    tokens = torch.arange(1, _TRIED + 1, device=model.device).unsqueeze(0)
    with torch.inference_mode():
        try:
            logits: torch.Tensor = model(input_ids=tokens, position_ids=position_ids, use_cache=False).logits
        except Exception as problem:
            # Code of the library may raise anything without the parts that it was written for.
            raise ModelLoadError(
                f"model {name}: the text part of {whole.__name__} does not run alone: "
                f"{type(problem).__name__}: {problem}"
            ) from problem
    return logits.float()
