"""The description of SGLang's target model for drafters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.adapters.common.target_tokenizer import fingerprint_of


def target_info(model_config: Any, tokenizer: Any, device: str) -> ModelInfo:
    """Describes the target model of SGLang's ModelConfig. tokenizer: SGLang's, None if it has none."""
    path = str(model_config.model_path)
    return ModelInfo(
        # The path of a directory stays private.
        model_id=Path(path).resolve().name if Path(path).is_dir() else path,
        architecture=next(iter(model_config.hf_config.architectures or ()), ""),
        vocab_size=model_config.vocab_size,
        context_length=model_config.context_len,
        dtype=str(model_config.dtype).removeprefix("torch."),
        device=device,
        tokenizer_sha256=fingerprint_of(tokenizer, path) if tokenizer is not None else "",
    )
