"""The description of a host engine's target model for drafters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.engine.text.leading_spaces import leading_spaces
from draftwire_core.engine.text.own_splitting import as_its_file_says
from draftwire_core.engine.text.tokenizer_files import TOKENIZER, tokenizer_fingerprint
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


def fingerprint_of(tokenizer: Any, name: str, revision: str | None = None) -> str:
    """Returns the fingerprint of a tokenizer of transformers. name: of the tokenizer, for the log. revision: of the
    hub's repository that it came from, if it did.

    Empty for one without a `tokenizer.json` or of another library, and then drafters are assumed to match.
    """
    if not getattr(tokenizer, "is_fast", False):  # those of Mistral's own library do not even say
        log.warning("tokenizer comparison skipped", tokenizer=name)
        return ""
    # As drafters have it. The host engine's own tokenizer, which may be this one, stays as it is.
    source = tokenizer.name_or_path
    file = _file_of(source, revision) if source else None
    if file is not None:
        tokenizer = as_its_file_says(tokenizer, file)
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    spaces = None if file is None else leading_spaces(tokenizer, file)
    if spaces is not None:
        states = (None if part is None else json.loads(part.__getstate__()) for part in spaces[:2])
        parts["normalizer"], parts["pre_tokenizer"] = states
    return tokenizer_fingerprint(parts)


def _file_of(name: str, revision: str | None) -> Path:
    """The tokenizer.json that a tokenizer of this name, a directory or a hub id, was read from; it may not exist."""
    if not Path(name).is_dir():
        try:
            found = try_to_load_from_cache(name, TOKENIZER, revision=revision)
        except HFValidationError:  # a path
            found = None
        if isinstance(found, str):
            return Path(found)
    return Path(name) / TOKENIZER
