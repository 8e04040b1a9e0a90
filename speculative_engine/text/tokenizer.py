"""The tokenizer of a checkpoint: text to ids, ids to text as they come, and a fingerprint to compare two."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from speculative_engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from speculative_engine.text.text_bound import bytes_per_token
from speculative_engine.text.token_texts import TokenTexts
from speculative_engine.text.tokenizer_fingerprint import tokenizer_fingerprint
from speculative_engine.text.vocabulary import Vocabulary, VocabularyError

_FEW_TOKENS = 256
_LONGEST_REASON = 300
"""Characters of another library's reason."""


class ChatTemplateError(Exception):
    """The conversation cannot be rendered; the message says why."""


class Tokenizer:
    """A fast tokenizer of the Hugging Face library."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        # As the library does it before each text.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = tokenizer.split_special_tokens
        # A few families of tokenizers have a way of their own to read a text.
        self._direct = type(tokenizer)._encode_plus is PreTrainedTokenizerFast._encode_plus
        parts = json.loads(self._backend.to_str())
        self.sha256 = tokenizer_fingerprint(parts)
        """Equal for tokenizers that give every text the same ids."""
        self.texts = TokenTexts(self._backend, parts)
        """What single tokens stand for."""
        self.bytes_per_token = bytes_per_token(parts)
        """The most bytes of text that a token stands for; see `text_bound`."""

    @classmethod
    def load(cls, source: str | Checkpoint, *, trust_remote_code: bool = False) -> Tokenizer:
        """Load from a directory or hub id; see `Checkpoint.find`. Raises ModelLoadError."""
        checkpoint = Checkpoint.find(source, model=False)
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                checkpoint.directory, local_files_only=not checkpoint.from_hub, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Libraries list over several lines what they looked for.
            reason = " ".join(str(error).split()) or type(error).__name__
            if not (checkpoint.directory / "tokenizer.json").is_file():
                reason = f"has no tokenizer.json; {reason}"
            raise ModelLoadError(f"tokenizer of {checkpoint.name}: {reason[:_LONGEST_REASON]}") from error
        if not tokenizer.is_fast:
            raise ModelLoadError(f"tokenizer of {checkpoint.name}: has no tokenizer.json, which streaming text needs")
        return cls(tokenizer)

    def save(self, directory: Path) -> None:
        """Write the tokenizer's files into a directory."""
        self._tokenizer.save_pretrained(directory)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Other threads of Python run meanwhile."""
        if not self._direct:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return ids
        # A quarter of the time and a third of the memory of the library's own way, for the same ids. Of the backend's
        # methods those for a single text keep the interpreter to themselves.
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoded.ids)

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool) -> tuple[list[int], list[int]]:
        """Token ids of a text, and where in it, in characters, each token begins."""
        (encoded,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        offsets: list[int] = []
        end = 0
        for first, last in encoded.offsets:
            # What the tokenizer puts around a text has no place in it, and says 0, 0 also behind it.
            offsets.append(first if last > first else end)
            end = max(end, last)
        return list(encoded.ids), offsets

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD. Other threads of Python run meanwhile."""
        if len(token_ids) <= _FEW_TOKENS:  # a fifth of the time, but the interpreter waits
            return str(self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))
        (text,) = self._backend.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return str(text)

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""
        return bool(self._tokenizer.chat_template)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation by the checkpoint's chat template, up to where the assistant answers.

        Raises ChatTemplateError if there is no template or it refuses the messages.
        """
        if not self._tokenizer.chat_template:
            raise ChatTemplateError("the target's tokenizer has no chat template")
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # templates are programs of the checkpoint and raise what they like
            raise ChatTemplateError(str(error)) from error
        return text

    def to_json(self) -> str:
        """The text of its tokenizer.json."""
        text: str = self._backend.to_str()
        return text

    def vocabulary(self) -> Vocabulary:
        """Its tokens as bytes. Raises ModelLoadError where they cannot be told as such."""
        roles = {"eos": self._tokenizer.eos_token_id, "bos": self._tokenizer.bos_token_id}
        try:
            return Vocabulary(self._backend, {role: token for role, token in roles.items() if token is not None})
        except VocabularyError as error:
            raise ModelLoadError(f"tokenizer of {self._tokenizer.name_or_path}: {error}") from error

    def stream(self) -> TextStream:
        """A new stream of text."""
        return TextStream(self)


class TextStream:
    """Turns the ids of one sequence into text as they come, without splitting a character."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that became final with this token; empty while a character is incomplete."""
        try:
            text = self._decoder.step(self._tokenizer._backend, token_id)
        except Exception as error:  # the library has no narrower one
            if "Invalid prefix" not in str(error):
                raise
            # By this token, others before it decode to something else: bytes that are no UTF-8 do that where a
            # tokenizer has tokens for single bytes. What is out stays.
            self._decoder = DecodeStream(ids=[token_id], skip_special_tokens=True)
            text = self._tokenizer.decode([*self._held, token_id])
        if text is None:
            self._held.append(token_id)
            return ""
        self._held.clear()
        return str(text)

    def flush(self) -> str:
        """What is left at the end: a character that was never completed, as U+FFFD."""
        text = self._tokenizer.decode(self._held)
        self._held.clear()
        return text
