"""The tokenizer files of a checkpoint in place of the tokenizer.json that is needed, and what to do about it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.util
import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from draftwire_core.engine.checkpoint.plain_files import check_pointer, json_object

TOKENIZER = "tokenizer.json"
_OTHERS = ("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model")
_TEKKEN, _MODEL = "tekken.json", "tokenizer.model"
_CONVERTERS = ("sentencepiece", "google.protobuf")
_LONGEST_LINE = 4096
_PATTERNS = ("*token*", "*vocab*", "*.tiktoken", "*.model")
"""Patterns of files that may hold a tokenizer, the code of a class included."""
_ABOUT = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
"""Files that hold none, though they have such names."""
_COPY = f"take {TOKENIZER} from a copy of the model in the format of transformers"


def check_tokenizer_files(directory: Path) -> None:
    """Raises ValueError for a directory whose tokenizer cannot be read here, and says what would help."""
    check_pointer(directory / TOKENIZER)
    if (directory / TOKENIZER).exists():
        if not (directory / TOKENIZER).is_file():
            raise ValueError(f"{TOKENIZER} is not a file")
        return
    if any((directory / name).is_file() for name in _OTHERS):
        return
    model = directory / _MODEL
    check_pointer(model)
    if model.is_file():
        kind, packages = ("tiktoken", ("tiktoken",)) if _is_tiktoken(model) else ("SentencePiece", _CONVERTERS)
        lacking = [name for name in packages if not _is_there(name)]
        if lacking:
            raise ValueError(
                f"has no {TOKENIZER}, only {_MODEL} ({kind}), whose conversion needs the package "
                f"{lacking[0]}, which is not installed; or {_COPY}"
            )
    elif (directory / _TEKKEN).is_file():
        raise ValueError(
            f"has no {TOKENIZER}, only {_TEKKEN}, the format of Mistral's own library, which is not read: {_COPY}"
        )
    elif {file.name for pattern in _PATTERNS for file in directory.glob(pattern)} <= _ABOUT:
        raise ValueError(
            f"has no {TOKENIZER}, and no file of another tokenizer: {_COPY}, or of the one it was made from"
        )


def template_of_processor(directory: Path) -> str | None:
    """The chat template that older multimodal checkpoints have in a file of their processor; None if there is none.
    Raises ValueError, which names the file, if it cannot be read."""
    file = directory / "chat_template.json"
    template = json_object(file).get("chat_template") if file.is_file() else None
    return template if isinstance(template, str) else None


def _is_tiktoken(model: Path) -> bool:
    """Whether a file has lines of a token in base64 and its rank."""
    try:
        with model.open("rb") as file:
            token, _, rank = file.readline(_LONGEST_LINE).strip().partition(b" ")
        return bool(base64.b64decode(token, validate=True)) and rank.isdigit()
    except (OSError, binascii.Error, ValueError):
        return False


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


def tokenizer_fingerprint(backend: Mapping[str, object]) -> str:
    """SHA-256 (hex) of the parts that determine ids: model with vocabulary and merges, normaliser, pre-tokenizer, added
    tokens.

    What is put around a text does not count: drafters are given ids, and those of models of one family often differ in
    it.

    backend: the content of a `tokenizer.json`.
    """
    kept = {key: backend.get(key) for key in ("model", "normalizer", "pre_tokenizer", "added_tokens")}
    texts = {key: _model_json(part) if key == "model" else _sorted_json(part) for key, part in kept.items()}
    return hashlib.sha256(_object(texts).encode()).hexdigest()


def _model_json(model: Any) -> str:
    """The text of a model. That of 250,000 names and ids takes half the time if names alone are sorted."""
    if not isinstance(model, Mapping) or not isinstance(vocabulary := model.get("vocab"), Mapping):
        return _sorted_json(model)
    names = sorted(vocabulary)
    ids = map(str, map(vocabulary.__getitem__, names))
    entries = map(": ".join, zip(map(encode_basestring_ascii, names), ids, strict=True))
    texts = {key: _sorted_json(part) for key, part in model.items() if key != "vocab"}
    return _object(texts | {"vocab": f"{{{', '.join(entries)}}}"})


def _object(texts: Mapping[str, str]) -> str:
    """The text of a JSON object with the texts of its values by name."""
    return f"{{{', '.join(f'{_sorted_json(name)}: {texts[name]}' for name in sorted(texts))}}}"


def _sorted_json(part: object) -> str:
    return json.dumps(part, sort_keys=True, ensure_ascii=True)
