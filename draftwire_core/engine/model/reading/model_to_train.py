"""Reads a checkpoint as transformers has it, for training: nothing is packed, and tensors keep their gradients."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.model.reading.completeness import check_complete, without_adapter, without_report
from draftwire_core.engine.model.reading.quantisation import find_quantisation, quantisation_of
from draftwire_core.engine.model.reading.read_model import read_model, resolve_dtype
from draftwire_core.engine.model.reading.text_part import whole_class


def target_to_train_on(checkpoint: Checkpoint, device: torch.device) -> PreTrainedModel:
    """Reads a target that a training leaves as it is, in the type that it is served in by default. What is read is what
    is served, of a multimodal checkpoint the text part; quantised tensors are read as for `model_to_train`. Raises what
    that does."""
    if checkpoint.gguf is None:
        with load_errors(f"model {checkpoint.name}"):
            config = AutoConfig.from_pretrained(checkpoint.directory, local_files_only=True)
            find_quantisation(checkpoint, config)
        if quantisation_of(config) is None:
            model = read_model(checkpoint, device, dtype="auto")
            model.config.name_or_path = str(checkpoint.directory)
            return model
    return model_to_train(checkpoint, resolve_dtype("auto", device)).to(device)


def model_to_train(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    """Reads a model on the CPU. Raises ModelLoadError for a checkpoint that would not be served either, since tensors
    are missing, left over or of other shapes, and for one that needs a package which is not installed; otherwise
    whatever transformers raises. What a library makes of quantised tensors is left to it; the tensors of a GGUF file
    become numbers of the type.
    """
    if checkpoint.gguf is not None:
        return _of_gguf(checkpoint.gguf, dtype)
    model: PreTrainedModel
    try:
        with without_report(), without_adapter():
            model, told = AutoModelForCausalLM.from_pretrained(
                checkpoint.directory,
                dtype=dtype,
                local_files_only=True,
                output_loading_info=True,
                # So that it reports them, and `check_complete` can name them.
                ignore_mismatched_sizes=True,
            )
    except ImportError as error:  # of what reads quantised tensors
        raise ModelLoadError(f"model {checkpoint.name}: {' '.join(str(error).split())}") from error
    if quantisation_of(model.config) is None:
        in_part = whole_class(model.config) is not None
        check_complete(checkpoint.name, model.config.get_text_config(decoder=True), told, in_part=in_part)
    return model


def _of_gguf(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Makes the model of a GGUF file with plain tensors. Raises ModelLoadError."""
    # Imported here because it needs the package gguf, which other checkpoints do not.
    from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile

    file = GgufFile.open(path)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(file.config(), dtype=dtype)
    with torch.no_grad():
        for name, values in model.state_dict().items():
            if name in file.tensors or not model.config.tie_word_embeddings:  # a tied head is the embedding
                values.copy_(file.tensors[name].dequantised())
    # The class of the model may end a text elsewhere than the file says.
    model.generation_config = GenerationConfig.from_model_config(model.config)
    return model
