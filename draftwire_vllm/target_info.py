"""The description of vLLM's target model for drafters, from vLLM's configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from draftwire.v1.model_info_pb2 import ModelInfo
from service_runtime.process.logs import get_logger
from speculative_engine.text.tokenizer_fingerprint import tokenizer_fingerprint

log = get_logger(__name__)


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
    """Returns the tokenizer's fingerprint; empty without a `tokenizer.json`, and then drafters are assumed to match."""
    if model.skip_tokenizer_init:
        return ""
    tokenizer = AutoTokenizer.from_pretrained(
        model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
    )
    if not tokenizer.is_fast:
        log.warning("tokenizer cannot be compared with those of drafters", tokenizer=model.tokenizer)
        return ""
    return tokenizer_fingerprint(json.loads(tokenizer.backend_tokenizer.to_str()))
