"""Byte-level tokenizers that split texts as their own tokenizer.json says.

Some classes of transformers build their tokenizer again, of the tokens and merges in a tokenizer.json, and split and
normalise texts as the first models of the class do. The class follows from the type of the model, not from its
tokenizer: a small Qwen 2 with the vocabulary of another model, made to draft for that one, would get other ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
_BYTE_LEVEL = "ByteLevel"
_SETTLED = ("add_prefix_space", "trim_offsets")
"""Fields in which a class may differ: its configuration has the first one, too, and ids do not depend on the other."""


def as_its_file_says(tokenizer: PreTrainedTokenizerBase, file: Path) -> PreTrainedTokenizerBase:
    """Returns a tokenizer that was just loaded, or another one if it splits or normalises texts in another way than its
    tokenizer.json says.

    file: the tokenizer.json, which may be missing. Raises ValueError and OSError if it cannot be read.
    """
    kind = type(tokenizer)
    # Classes without a constructor are read from the file as they are. Code of a checkpoint's own knows what it does.
    if "__init__" not in vars(kind) or not kind.__module__.startswith("transformers.") or not file.is_file():
        return tokenizer
    built = list(_steps(tokenizer.backend_tokenizer))
    if not _is_byte_level(built):
        return tokenizer
    parts = json.loads(file.read_text(encoding="utf-8"))
    said = Backend.from_str(json.dumps(_EMPTY | {key: parts.get(key) for key in ("normalizer", "pre_tokenizer")}))
    own = list(_steps(said))
    if own == built or not _is_byte_level(own):
        return tokenizer
    found: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(file.parent, local_files_only=True)
    return found


def _is_byte_level(steps: list[dict[str, Any]]) -> bool:
    return any(step["type"] == _BYTE_LEVEL for step in steps)


def _steps(backend: Backend) -> Iterator[dict[str, Any]]:
    """The steps that change a text or split it, with sequences flattened, without what does not matter here."""
    for part in (backend.normalizer, backend.pre_tokenizer):
        waiting = [] if part is None else [json.loads(part.__getstate__())]
        while waiting:
            step = waiting.pop(0)
            inner = step.get("normalizers", step.get("pretokenizers"))
            if inner is None:
                yield {name: value for name, value in step.items() if name not in _SETTLED}
            else:
                waiting = [*inner, *waiting]
