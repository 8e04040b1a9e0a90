"""Reads the model of a checkpoint: a directory of safetensors, plain or quantised, or a GGUF file."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import is_accelerate_available, logging

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.config_bounds import check_counts
from draftwire_core.engine.checkpoint.load_errors import load_errors, stop_if_abandoned
from draftwire_core.engine.checkpoint.module_budget import check_declared
from draftwire_core.engine.checkpoint.plain_files import json_object
from draftwire_core.engine.checkpoint.weight_files import WeightTotals, weight_totals
from draftwire_core.engine.device.choices import AUTO, device_here, gpus_of
from draftwire_core.engine.device.host import free_memory
from draftwire_core.engine.errors import ModelMemoryError
from draftwire_core.engine.kernels.library import PLAIN_GEMM, LibraryMismatchError, gemm_kind, library
from draftwire_core.engine.model.linear.row_exact import can_pack
from draftwire_core.engine.model.ranks.rank_group import RankGroup, RankLostError
from draftwire_core.engine.model.ranks.sharded_layers import SplitError, check_split, split_on
from draftwire_core.engine.model.reading.completeness import check_complete, without_adapter, without_report
from draftwire_core.engine.model.reading.quantisation import find_quantisation, quantisation_of
from draftwire_core.engine.model.reading.quantised_model import GENERATION, quantised_model
from draftwire_core.engine.model.reading.text_part import read_text_part, text_class, whole_class
from draftwire_core.engine.model.shallow_model import keep_first_layers

if TYPE_CHECKING:
    from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_BFLOAT16_CAPABILITY = (8, 0)
"""NVIDIA's compute capability from which GPUs compute in bfloat16."""


class UnsupportedModelError(ModelLoadError):
    """Raised for a model that loads, but whose packed passes would not give the model's own output."""


def check_model_splits(source: str | Checkpoint, ranks: int, *, trust_remote_code: bool = False) -> None:
    """Checks by its configuration alone that a model can be split among `ranks` ranks.

    Raises UnsupportedModelError if it cannot, and ModelLoadError if the configuration cannot be read.
    """
    checkpoint = Checkpoint.find(source)
    name = checkpoint.name
    with load_errors(f"model {name}"):
        check_counts(checkpoint, weight_totals(checkpoint).tensors)
        config = AutoConfig.from_pretrained(
            checkpoint.directory, local_files_only=not checkpoint.from_hub, trust_remote_code=trust_remote_code
        )
        find_quantisation(checkpoint, config)
        try:
            if quantisation_of(config) is not None:
                raise SplitError("quantised checkpoints cannot be split among ranks (--tensor-parallel)")
            check_split(config, ranks)
        except SplitError as error:
            raise UnsupportedModelError(f"model {name}: {error}") from error


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype that a `--dtype` setting selects.

    "auto" is bfloat16 if there is a fast product of bfloat16 weights (compiled, oneDNN's, or a GPU's from Ampere
    on), else float32.
    """
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= _BFLOAT16_CAPABILITY else torch.float32
    return torch.bfloat16 if gemm_kind() > PLAIN_GEMM or can_pack(torch.bfloat16) else torch.float32


def usable_device(name: str) -> torch.device:
    """The device that a `--device` setting selects. Raises ModelLoadError if this machine cannot use it."""
    if name == AUTO:
        name = device_here(name).device
    device = torch.device(name)
    if device.type == "cuda" and (problem := gpus_of(torch.cuda).problem):
        raise ModelLoadError(f"device {name}: {problem}")
    if device.type == "cpu":
        try:
            library()
        except LibraryMismatchError as error:
            raise ModelLoadError(str(error)) from error
    return device


def read_model(
    checkpoint: Checkpoint,
    place: torch.device,
    *,
    dtype: str,
    trust_remote_code: bool = False,
    layers: int | None = None,
    ranks: RankGroup | None = None,
) -> PreTrainedModel:
    """Reads the model of a checkpoint, with weights of linear layers as the checkpoint has them.

    dtype: as the setting of this name. layers: number of first layers to read; None for all. ranks: the
    group of ranks of which this process reads its own part; the call returns when all have. Raises ModelLoadError,
    and RankLostError if a rank is lost.
    """
    if not sys.stderr.isatty():  # progress bars would fill a log
        logging.disable_progress_bar()
    stop_if_abandoned()
    with load_errors(f"model {checkpoint.name}", RankLostError):
        if checkpoint.gguf is not None:
            from draftwire_core.engine.checkpoint.gguf.gguf_file import (
                GgufFile,  # needs the package gguf, which others do not
            )

            model = _from_gguf(GgufFile.open(checkpoint.gguf), place, dtype, layers, ranks)
        else:
            model = _from_directory(checkpoint, place, dtype, trust_remote_code, layers, ranks)
    stop_if_abandoned()
    return model


def _from_directory(
    checkpoint: Checkpoint,
    place: torch.device,
    dtype: str,
    trust_remote_code: bool,
    layers: int | None,
    ranks: RankGroup | None,
) -> PreTrainedModel:
    """Makes the model of a directory. Its files are measured before anything is made by its configuration."""
    source = checkpoint.name
    totals = weight_totals(checkpoint)
    check_counts(checkpoint, totals.tensors)
    if (checkpoint.directory / GENERATION).is_file():  # transformers passes over one that is damaged, and its ends
        json_object(checkpoint.directory / GENERATION)
    config = AutoConfig.from_pretrained(
        checkpoint.directory, local_files_only=not checkpoint.from_hub, trust_remote_code=trust_remote_code
    )
    find_quantisation(checkpoint, config)
    if layers is not None:
        keep_first_layers(config, layers)
    if config.is_encoder_decoder and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModelError(f"model {source}: {type(config).__name__} is of an encoder-decoder model")
    is_part = whole_class(config) is not None
    if is_part:
        _check_part(source, config, ranks)
    if quantisation_of(config) is not None:
        _check_quantised(f"model {source}: quantised checkpoints", place, dtype, ranks)

        def read_quantised(kind: type[PreTrainedModel] | None) -> PreTrainedModel:
            return quantised_model(
                checkpoint, config, torch.bfloat16, kind=kind, trust_remote_code=trust_remote_code, layers=layers
            )

        kept = read_text_part(source, config, read_quantised) if is_part else read_quantised(text_class(config))
        return _placed(kept, place)
    read = partial(
        _from_library,
        checkpoint,
        config,
        place,
        totals,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        in_part=is_part or layers is not None,
        ranks=ranks,
    )
    try:
        model = read_text_part(source, config, read) if is_part else read(text_class(config) or AutoModelForCausalLM)
    except SplitError as error:
        raise UnsupportedModelError(f"model {source}: {error}") from error
    except pickle.UnpicklingError as error:
        raise ModelLoadError(f"model {source}: its weights are a pickle that may be code, and is not read") from error
    if ranks is not None:
        ranks.loaded()
    return model.to(place)


def _from_library(
    checkpoint: Checkpoint,
    config: PretrainedConfig,
    place: torch.device,
    totals: WeightTotals,
    kind: Any,
    *,
    dtype: str,
    trust_remote_code: bool,
    in_part: bool,
    ranks: RankGroup | None,
) -> PreTrainedModel:
    """Reads a checkpoint of plain weights through transformers: straight to a GPU, if the package accelerate is there,
    which transformers needs for that; otherwise through host memory as large as the model.

    totals: what the files hold. kind: a class with `from_pretrained`. in_part: whether the checkpoint has weights that
    are meant to be skipped.
    """
    straight = ranks is None and place.type != "cpu" and is_accelerate_available()
    if ranks is not None:
        check_split(config, ranks.size)
    parameters = check_declared(checkpoint.name, totals, partial(_made, kind, config, trust_remote_code))
    if place.type == "cpu" and ranks is None:
        _check_memory(checkpoint.name, parameters, resolve_dtype(dtype, place))
    with (
        without_report(),
        without_adapter(),
        split_on(place, ranks) if ranks is not None else nullcontext() as split,
    ):
        model: PreTrainedModel
        model, told = kind.from_pretrained(
            checkpoint.directory,
            config=config,
            dtype=resolve_dtype(dtype, place),
            # A hub checkpoint is local by now, but its code may be in other repositories.
            local_files_only=not checkpoint.from_hub,
            trust_remote_code=trust_remote_code,
            distributed_config=split,
            device_map={"": place} if straight else None,
            output_loading_info=True,
            # So that it reports them, and `check_complete` can name them.
            ignore_mismatched_sizes=True,
        )
    check_complete(checkpoint.name, config.get_text_config(decoder=True), told, in_part=in_part)
    return model


def _check_memory(name: str, parameters: int, dtype: torch.dtype) -> None:
    """Raises ModelMemoryError for weights that do not fit into the memory that is free."""
    needed, free = parameters * dtype.itemsize, free_memory()
    if free is not None and needed > free:
        raise ModelMemoryError(
            f"model {name}: its {parameters / 1e9:.1f} billion parameters take {needed / 2**30:.1f} GiB in "
            f"{str(dtype).removeprefix('torch.')}, but {free / 2**30:.1f} GiB of memory are free (--dtype)"
        )


def _made(kind: Any, config: PretrainedConfig, trust_remote_code: bool) -> PreTrainedModel:
    """A model of a class with random weights, on the current device. kind: as in `_from_library`."""
    config = copy.deepcopy(config)
    made: PreTrainedModel
    if kind is AutoModelForCausalLM:
        made = kind.from_config(config, trust_remote_code=trust_remote_code)
    else:
        made = kind._from_config(config)
    return made


def _from_gguf(
    file: GgufFile, place: torch.device, dtype: str, layers: int | None, ranks: RankGroup | None
) -> PreTrainedModel:
    """Makes the model of a GGUF file. Raises ModelLoadError."""
    from draftwire_core.engine.model.reading.gguf_model import gguf_model

    _check_quantised(f"model {file.path}: GGUF files", place, dtype, ranks)
    config = file.config()
    if layers is not None:
        keep_first_layers(config, layers)
    return _placed(gguf_model(file, config, torch.bfloat16), place)


def _placed(model: PreTrainedModel, place: torch.device) -> PreTrainedModel:
    """Moves a quantised model, except for its quantised weights, which stay in the files until they are packed."""
    if place.type == "cpu":
        return model
    from draftwire_core.engine.model.cuda.placing import move_plain  # needs Triton

    return move_plain(model, place)


def _check_part(source: str, config: PretrainedConfig, ranks: RankGroup | None) -> None:
    """Raises UnsupportedModelError where the text part of a multimodal checkpoint cannot be read alone."""
    what = f"model {source}: the text part of a multimodal checkpoint ({type(config).__name__})"
    if ranks is not None:
        raise UnsupportedModelError(f"{what} cannot be split among ranks (--tensor-parallel)")


def _check_quantised(what: str, place: torch.device, dtype: str, ranks: RankGroup | None) -> None:
    """Raises ModelLoadError where quantised weights cannot be kept as they are. what: begins the message."""
    if place.type != "cpu" and importlib.util.find_spec("triton") is None:
        raise ModelLoadError(f"{what} on {place.type} need the package triton, which is not installed")
    if ranks is not None:
        raise UnsupportedModelError(f"{what} cannot be split among ranks (--tensor-parallel)")
    if dtype not in ("auto", "bfloat16"):
        raise ModelLoadError(f"{what} need dtype bfloat16, not {dtype}")
