"""The tokens of a GGUF file that end a text: those that its keys name, and those whose names say so.

Files name one or two of them, and models end with others, too: an answer with <|im_end|>, a call of a tool with
<|eom_id|>. llama.cpp knows these by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gguf.constants import TokenType

_NAMES = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>"),
        *("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<end_of_turn>", "<turn|>", "<|tool_response>"),
        *("<|END_OF_TURN_TOKEN|>", "<|end_of_role|>", "<|user|>", "[|endofturn|]", "<end_of_utterance>"),
        *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~["),
    )
)
"""Tokens that end a text unless the file says that they are a part of one. They are special even if it does not."""
_IF_SPECIAL = frozenset(["</s>", "<eos>"])
"""Tokens that end a text if they are special. Some vocabularies have the first one for crossed-out text in HTML."""
_ROLES = ("eos", "eot", "eom")


def is_end(name: str, kind: int | float) -> bool:
    """Whether the name of a token of this type says that it ends a text."""
    if kind == TokenType.CONTROL:
        return name in _NAMES or name in _IF_SPECIAL
    return kind == TokenType.USER_DEFINED and name in _NAMES


def ends_of(roles: Mapping[str, int], tokens: Sequence[str], types: Sequence[int | float]) -> list[int]:
    """The tokens that end a text, those that the file's keys name first.

    roles: the tokens that keys name, by the names of the keys, such as `eos`. tokens, types: names and types of all.
    """
    return list(dict.fromkeys([*(roles[role] for role in _ROLES if role in roles), *_by_name(tokens, types)]))


def _by_name(tokens: Sequence[str], types: Sequence[int | float]) -> Iterator[int]:
    found = {name: token for token, (name, kind) in enumerate(zip(tokens, types, strict=True)) if is_end(name, kind)}
    # In the Harmony format and in Solar Open's the first of these ends a message, after which others follow.
    if found.keys() >= {"<|return|>", "<|call|>"} or (
        "<|flush|>" in found and found.keys() & {"<|call|>", "<|calls|>"}
    ):
        found.pop("<|end|>", None)
    if "<|tool_response>" in found:  # Gemma 4
        found.pop("</s>", None)
    yield from sorted(found.values())
