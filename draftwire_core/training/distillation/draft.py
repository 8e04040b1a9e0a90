"""The draft model in training: loaded from a checkpoint, and written as one for a drafter service."""

from __future__ import annotations

import copy
import pickle
import shutil
import stat
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import logging

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.model.reading.model_to_train import model_to_train
from draftwire_core.engine.text.tokenizer import Tokenizer


class Draft:
    """A draft model in float32, so that small training steps are not rounded away."""

    def __init__(self, source: str, *, device: str = "cpu"):
        """Loads from a directory, a GGUF file or a hub id; see `Checkpoint.find`. Raises ModelLoadError."""
        if not sys.stderr.isatty():  # no progress bars in a log
            logging.disable_progress_bar()
        checkpoint = Checkpoint.find(source)
        place = checkpoint.directory
        self.quantised = False
        """Whether the weights were in blocks, which those of a checkpoint that is written are not."""
        try:
            model = model_to_train(checkpoint, torch.float32)
            if checkpoint.gguf is not None:
                # Imported here because it needs the package gguf, which other checkpoints do not.
                from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile

                file = GgufFile.open(checkpoint.gguf)
                self.quantised = any(part.plain is None for each in file.tensors.values() for part in each.parts)
                self._dtype = torch.bfloat16
            else:
                self._dtype = AutoConfig.from_pretrained(place, local_files_only=True).dtype or torch.float32
        except (OSError, ValueError, KeyError, pickle.UnpicklingError) as error:  # the last: weights that may be code
            raise ModelLoadError(f"draft {source}: {str(error).strip().splitlines()[0]}") from error
        self.source = source
        self.tokenizer = Tokenizer.load(checkpoint)
        self.model: PreTrainedModel = model.to(device)
        self.device = device
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.context_length = int(getattr(model.config, "max_position_embeddings", None) or 2048)

    def write(self, directory: Path) -> None:
        """Writes a checkpoint with the data type of the one it was loaded from, for a GGUF file in bfloat16. An
        existing directory is replaced once the new one is complete. Raises OSError."""
        new = directory.with_name(directory.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        try:
            copy.deepcopy(self.model).to(self._dtype).save_pretrained(new)
            self.tokenizer.save(new)
            # The weights are written readable by their owner only; a service that runs as another user must read them.
            readable = stat.S_IMODE((new / "config.json").stat().st_mode)
            for weights in new.glob("*.safetensors"):
                weights.chmod(readable)
        except BaseException as error:
            shutil.rmtree(new, ignore_errors=True)  # a full disk must not stay full
            if isinstance(error, SafetensorError):
                raise OSError(f"{directory} cannot be written: {error}") from error
            raise
        if directory.exists():
            shutil.rmtree(directory)
        new.replace(directory)
