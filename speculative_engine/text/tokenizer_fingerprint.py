"""A fingerprint by which two tokenizers are compared, wherever they were loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping


def tokenizer_fingerprint(backend: Mapping[str, object]) -> str:
    """SHA-256 of what decides ids: the model with vocabulary and merges, normalisation, splitting, added tokens.

    backend: the parts of a `tokenizer.json`.
    """
    kept = {key: backend.get(key) for key in ("model", "normalizer", "pre_tokenizer", "added_tokens")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
