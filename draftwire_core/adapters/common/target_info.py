"""The description of a host engine's target model for drafters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.engine.text.tokenizer_files import tokenizer_fingerprint
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)


def target_info(
    path: str,
    architectures: Sequence[str] | None,
    *,
    vocab_size: int,
    context_length: int,
    dtype: Any,
    device: Any,
    tokenizer_sha256: str,
) -> ModelInfo:
    """Describes a target model. path: its directory, whose path stays private, or a hub id. dtype: torch's."""
    return ModelInfo(
        model_id=Path(path).resolve().name if Path(path).is_dir() else path,
        architecture=next(iter(architectures or ()), ""),
        vocab_size=vocab_size,
        context_length=context_length,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        tokenizer_sha256=tokenizer_sha256,
    )


def fingerprint_of(tokenizer: Any, name: str) -> str:
    """Returns the fingerprint of a tokenizer of transformers. name: of the tokenizer, for the log.

    Empty for one without a `tokenizer.json`, and then drafters are assumed to match.
    """
    if not tokenizer.is_fast:
        log.warning("tokenizer comparison skipped", tokenizer=name)
        return ""
    return tokenizer_fingerprint(json.loads(tokenizer.backend_tokenizer.to_str()))
