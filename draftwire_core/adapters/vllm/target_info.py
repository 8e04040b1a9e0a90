"""The description of vLLM's target model for drafters, from vLLM's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.adapters.common.target_tokenizer import fingerprint_of


def target_info(vllm_config: Any) -> ModelInfo:
    """Describes the target model of a `VllmConfig`. Reads the tokenizer's files."""
    model = vllm_config.model_config
    return ModelInfo(
        # The path of a directory stays private.
        model_id=Path(model.model).resolve().name if Path(model.model).is_dir() else model.model,
        architecture=next(iter(model.architectures or ()), ""),
        vocab_size=model.get_vocab_size(),
        context_length=model.max_model_len,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(vllm_config.device_config.device_type),
        tokenizer_sha256=_tokenizer_sha256(model),
    )


def _tokenizer_sha256(model: Any) -> str:
    if model.skip_tokenizer_init:
        return ""
    tokenizer = AutoTokenizer.from_pretrained(
        model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
    )
    return fingerprint_of(tokenizer, model.tokenizer)
