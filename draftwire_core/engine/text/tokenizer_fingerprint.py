"""Fingerprints by which tokenizers of different processes are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping


def tokenizer_fingerprint(backend: Mapping[str, object]) -> str:
    """SHA-256 (hex) of the parts that determine ids: model with vocabulary and merges, normaliser, pre-tokenizer, added
    tokens.

    What is put around a text does not count: drafters are given ids, and those of models of one family often differ in
    it.

    backend: the content of a `tokenizer.json`.
    """
    kept = {key: backend.get(key) for key in ("model", "normalizer", "pre_tokenizer", "added_tokens")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
