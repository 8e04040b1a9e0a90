"""Bytes of weights that a model reads for a token, from the names and sizes of its tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_EMBEDDINGS = re.compile(r"(?:embed_tokens|wte|word_embeddings|embed_in|tok_embeddings|^token_embd)\.weight$")
"""Names of embeddings. A model with an output head of its own reads one row of them for a token."""
_HEADS = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.weight$|^output\.weight$")
_EXPERTS = re.compile(r"\.experts\.|_exps\.")
_ELSEWHERE = re.compile(
    r"(?:^|\.)(?:vision|visual|audio|mtp|multi_modal_projector|mm)[._]|vision_tower|\.nextn\."
    r"|(?:embed_tokens_per_layer|^per_layer_token_embd)\.weight$"
)
"""Names of tensors that generating text does not read: other modalities, layers that draft, and the embeddings of
layers of Gemma 3n and 4, of which it reads one row."""
_MOST_HEADER = 1 << 27


def bytes_per_token(tensors: Iterable[tuple[str, int]], expert_share: float) -> int:
    """Returns the bytes of weights that a pass of one token reads.

    tensors: names, as of transformers or of GGUF, and bytes. expert_share: experts that a token uses over all experts.
    """
    total, embedding, has_head = 0.0, 0.0, False
    for name, size in tensors:
        if _ELSEWHERE.search(name):
            continue
        if _EMBEDDINGS.search(name):
            embedding += size
        else:
            has_head = has_head or _HEADS.search(name) is not None
            total += size * (expert_share if _EXPERTS.search(name) else 1.0)
    return round(total if has_head else total + embedding)


def safetensors_tensors(files: Iterable[Path], *, widened: bool = False) -> Iterator[tuple[str, int]]:
    """Yields names and bytes of the tensors in safetensors files.

    widened: whether numbers of 4 bits, which lie in bytes, become float16 at load and are to count as such. Raises
    ValueError for a file that is damaged, and OSError.
    """
    for path in files:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 2 <= size <= _MOST_HEADER:
                raise ValueError(f"{path.name} is no file of safetensors")
            header = json.loads(file.read(size))
        if not isinstance(header, dict):
            raise ValueError(f"{path.name} has no header of safetensors")
        for name, entry in header.items():
            if name != "__metadata__":
                try:
                    begin, end = entry["data_offsets"]
                    factor = 4 if widened and entry["dtype"] == "U8" else 1
                    yield name, factor * (int(end) - int(begin))
                except (KeyError, TypeError, ValueError) as error:
                    raise ValueError(f"{path.name}: tensor {name[:80]} has no bytes") from error
