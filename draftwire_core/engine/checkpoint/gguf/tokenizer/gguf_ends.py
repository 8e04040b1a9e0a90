"""The tokens of a GGUF file that end a text: those that its keys name, and those whose names say so.

Files name one or two of them, and models end with others, too: an answer with <|im_end|>, a call of a tool with
<|eom_id|>. llama.cpp knows these by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
_TAKEN_WHOLE = (TokenType.CONTROL, TokenType.USER_DEFINED)
_ROLES = ("eos", "eot", "eom")


def ends_of(roles: Mapping[str, int], ids: Mapping[str, int], types: Sequence[int | float]) -> list[int]:
    """The tokens that end a text, those that the file's keys name first.

    roles: the tokens that keys name, by the names of the keys, such as `eos`. ids: those of all tokens by their names.
    types: the types of all.
    """
    found = {name: ids[name] for name in _NAMES & ids.keys() if types[ids[name]] in _TAKEN_WHOLE}
    found |= {name: ids[name] for name in _IF_SPECIAL & ids.keys() if types[ids[name]] == TokenType.CONTROL}
    # In the Harmony format and in Solar Open's <|end|> ends a message, after which others follow.
    calls = found.keys() & {"<|call|>", "<|calls|>"}
    if (calls and "<|flush|>" in found) or found.keys() >= {"<|return|>", "<|call|>"}:
        found.pop("<|end|>", None)
    if "<|tool_response>" in found:  # Gemma 4
        found.pop("</s>", None)
    return list(dict.fromkeys([*(roles[role] for role in _ROLES if role in roles), *sorted(found.values())]))
