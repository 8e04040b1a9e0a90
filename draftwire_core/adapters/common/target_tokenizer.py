"""The tokenizer of a host engine's target model, as drafters compare it with theirs."""

from __future__ import annotations

import json
from typing import Any

from draftwire_core.engine.text.tokenizer_files import tokenizer_fingerprint
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)


def fingerprint_of(tokenizer: Any, name: str) -> str:
    """Returns the fingerprint of a tokenizer of transformers. name: of the tokenizer, for the log.

    Empty for one without a `tokenizer.json`, and then drafters are assumed to match.
    """
    if not tokenizer.is_fast:
        log.warning("tokenizer comparison skipped", tokenizer=name)
        return ""
    return tokenizer_fingerprint(json.loads(tokenizer.backend_tokenizer.to_str()))
