"""The tokenizer of a checkpoint: encodes text, decodes ids, also as a stream, and has a fingerprint to compare by."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.gguf.tokenizer.built_tokenizer import BuiltTokenizer
from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.text.chat_format import ChatFormat, find_chat_format
from draftwire_core.engine.text.chat_rendering import (
    AS_USUAL,
    ChatRendering,
    in_parts,
    reads_parts_alone,
    template_variables,
)
from draftwire_core.engine.text.infill import Infill, OwnEncoding, find_infill
from draftwire_core.engine.text.leading_spaces import keep_leading_spaces
from draftwire_core.engine.text.own_splitting import as_its_file_says
from draftwire_core.engine.text.stand_in_tools import with_tools
from draftwire_core.engine.text.text_bound import bytes_per_token
from draftwire_core.engine.text.token_table import TokenTable
from draftwire_core.engine.text.token_texts import TokenTexts
from draftwire_core.engine.text.tokenizer_files import (
    TOKENIZER,
    check_tokenizer_files,
    template_of_processor,
    tokenizer_fingerprint,
)
from draftwire_core.engine.text.turn_markers import find_turn_markers
from draftwire_core.engine.text.vocabulary import Vocabulary, VocabularyError

_FEW_TOKENS = 256
_PARTIAL = "\ufffd"
"""In a token's text: parts of characters, or this character itself."""
_MOST_HELD = 64
"""Most tokens whose text a stream holds back, since each further one decodes all of them again."""


class ChatTemplateError(Exception):
    """Raised if a conversation cannot be rendered; the message says why."""


class Tokenizer:
    """A fast tokenizer of transformers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        # Transformers sets these before each text.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = tokenizer.split_special_tokens
        # A few families of tokenizers override how a text is encoded.
        direct = type(tokenizer)._encode_plus is PreTrainedTokenizerFast._encode_plus
        self._own = None if direct else OwnEncoding(tokenizer)
        parts = (
            tokenizer.take_content() if isinstance(tokenizer, BuiltTokenizer) else json.loads(self._backend.to_str())
        )
        self.sha256 = tokenizer_fingerprint(parts)
        """Fingerprint; equal for tokenizers that give every text the same ids, apart from those put around it."""
        added = self._backend.get_added_tokens_decoder()
        self.specials = frozenset(token for token, each in added.items() if each.special)
        """The special tokens, which decoding may skip."""
        self.texts = TokenTexts(self._backend, parts)
        """The texts of single tokens."""
        self.joins_texts = (parts.get("decoder") or {}).get("type") == "ByteLevel"
        """Whether a text is that of its tokens, one after the other, as far as each is whole characters."""
        steps = (parts.get("decoder") or {}).get("decoders", [parts.get("decoder") or {}])
        self.takes_space = not {"Strip", "Metaspace"}.isdisjoint(step.get("type") for step in steps)
        """Whether the first space is taken off a text, as decoders of SentencePiece do."""
        self._decoded: tuple[dict[int, str], dict[int, str]] = ({}, {})
        """Texts of single tokens, with and without those of special ones."""
        self.bytes_per_token = bytes_per_token(parts)
        """The most bytes of text that a token stands for; see `text_bound`."""

    @classmethod
    def load(cls, source: str | Checkpoint, *, trust_remote_code: bool = False) -> Tokenizer:
        """Loads a tokenizer from a directory, GGUF file or hub id; see `Checkpoint.find`. Raises ModelLoadError."""
        checkpoint = Checkpoint.find(source, model=False)
        if checkpoint.gguf is not None:
            from draftwire_core.engine.checkpoint.gguf.gguf_file import (
                GgufFile,  # needs the package gguf, which others do not
            )

            return cls(GgufFile.open(checkpoint.gguf).tokenizer())
        what = f"tokenizer of {checkpoint.name}"
        with load_errors(what):
            check_tokenizer_files(checkpoint.directory)
        has_own = (checkpoint.directory / TOKENIZER).is_file()
        with load_errors(what if has_own else f"{what}: has no {TOKENIZER}"):
            tokenizer = AutoTokenizer.from_pretrained(
                checkpoint.directory,
                local_files_only=not checkpoint.from_hub,
                trust_remote_code=trust_remote_code,
                mistral_format=False,  # which it prefers where Mistral's own library is installed, as next to vLLM
            )
        if not tokenizer.is_fast:
            raise ModelLoadError(f"{what}: has no {TOKENIZER}, needed to stream text")
        with load_errors(what):
            tokenizer = as_its_file_says(tokenizer, checkpoint.directory / TOKENIZER)
            keep_leading_spaces(tokenizer, checkpoint.directory / TOKENIZER)
            template = tokenizer.chat_template or template_of_processor(checkpoint.directory)
            # Editors of Windows put a mark first, no part of a prompt.
            tokenizer.chat_template = template.removeprefix("\ufeff") if isinstance(template, str) else template
            return cls(tokenizer)

    def save(self, directory: Path) -> None:
        """Writes the tokenizer's files to a directory. Raises OSError."""
        try:
            self._tokenizer.save_pretrained(directory)
        except Exception as error:  # the package tokenizers has no narrower one, for a full disk for example
            raise OSError(str(error)) from error

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Usually releases the interpreter lock."""
        if self._own is not None and self._own.takes(text):
            return self._own.encode(text, add_special_tokens=add_special_tokens)
        # The same ids as by transformers' encode, in a quarter of the time and a third of the memory. A batch, since
        # the backend's methods for a single text hold the interpreter lock.
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoded.ids)

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool) -> tuple[list[int], list[int]]:
        """Token ids of a text, and the index of the character at which each token begins."""
        (encoded,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        offsets: list[int] = []
        end = 0
        for first, last in encoded.offsets:
            # Special tokens that the tokenizer adds have no place in the text; their offsets are 0, 0 even at its end.
            offsets.append(first if last > first else end)
            end = max(end, last)
        return list(encoded.ids), offsets

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; invalid UTF-8 becomes U+FFFD. Releases the interpreter lock for more than a few tokens."""
        if len(token_ids) <= _FEW_TOKENS:  # a fifth of the time, but holds the interpreter lock
            return str(self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))
        (text,) = self._backend.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return str(text)

    def decode_one(self, token_id: int, *, skip_special_tokens: bool = True) -> str:
        """Text of one token, as by `decode`; looked up once."""
        known = self._decoded[skip_special_tokens]
        text = known.get(token_id)
        if text is None:
            text = known[token_id] = self.decode([token_id], skip_special_tokens=skip_special_tokens)
        return text

    def shown(self, token_id: int) -> str:
        """Text of one token for display, with the space that begins it; empty for a special one."""
        return "" if token_id in self.specials else self.texts.of(token_id).text

    def use_chat_template(self, file: Path) -> None:
        """Replaces the chat template by that of a file (Jinja). Raises ModelLoadError if it is none."""
        try:
            template = file.read_text(encoding="utf-8-sig")  # editors of Windows put a mark first, no part of a prompt
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"chat template {file}: cannot be read: {error}") from error
        self._tokenizer.chat_template = template
        for found in ("chat_format", "_reads_parts_alone"):
            self.__dict__.pop(found, None)
        asked = {"role": "user", "content": "Hi"}
        refusal: ChatTemplateError | None = None
        for messages in ([asked], [{"role": "system", "content": "Be kind."}, asked]):  # some insist on the latter
            try:
                self.render_chat(messages)
            except ChatTemplateError as error:
                refusal = refusal or error
            else:
                return
        raise ModelLoadError(f"chat template {file}: does not render a user's message: {refusal}") from refusal

    @cached_property
    def infill(self) -> Infill | None:
        """How models of this tokenizer fill in the middle of a text; None if they do not."""
        return find_infill({each.content for each in self._tokenizer.added_tokens_decoder.values()})

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""
        return bool(self._tokenizer.chat_template)

    @cached_property
    def chat_format(self) -> ChatFormat:
        """The format of an assistant's answers. The first use renders a few conversations, which takes milliseconds."""
        return self.chat_format_with({})

    def chat_format_with(self, variables: Mapping[str, Any]) -> ChatFormat:
        """Returns the format of answers to conversations with these variables. Renders a few trial conversations."""
        template = self._tokenizer.chat_template
        if not template:
            return ChatFormat()
        text = template if isinstance(template, str) else "".join(template.values())
        added = {each.content: (token, each.special) for token, each in self._tokenizer.added_tokens_decoder.items()}

        def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
            return self._render(messages, tools, replace(AS_USUAL, variables=variables))

        found = find_chat_format(text, render, added)
        return replace(found, variables=template_variables(text) - set(self._tokenizer.special_tokens_map))

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        rendering: ChatRendering = AS_USUAL,
    ) -> str:
        """Renders a conversation with the chat template; as usual, up to the start of the assistant's answer.

        Tools, calls and results that the template leaves out become texts of messages (`stand_in_tools`).

        Raises ChatTemplateError if there is no template or it rejects the messages.
        """
        if not self._tokenizer.chat_template:
            raise ChatTemplateError("the target's tokenizer has no chat template; --chat-template gives it one")
        try:
            return self._render(*with_tools(self.chat_format, messages, tools), rendering)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the target's chat template is not valid: {error} (line {error.lineno}); the verifier's "
                "--chat-template replaces it"
            ) from error
        except Exception as error:  # templates are programs of the checkpoint and may raise anything
            # What a template itself raises is meant for the caller.
            text = str(error) if type(error) is TemplateError else f"the chat template fails: {error}"
            raise ChatTemplateError(text) from error

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], rendering: ChatRendering
    ) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [in_parts(message) if self._reads_parts_alone else dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=rendering.generation_prompt and not rendering.continues,
            continue_final_message=rendering.continues,
            **rendering.variables,
        )
        return text

    @cached_property
    def _reads_parts_alone(self) -> bool:
        def render(messages: Sequence[Mapping[str, Any]]) -> str:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False))

        return reads_parts_alone(render)

    def to_json(self) -> str:
        """The content of the tokenizer.json."""
        text: str = self._backend.to_str()
        return text

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The token that ends a text; none if the tokenizer names none."""
        token = self._tokenizer.eos_token_id
        return () if token is None else (token,)

    def token_table(self) -> TokenTable:
        """The tokens as bytes. Raises VocabularyError if their bytes cannot be determined."""
        return TokenTable.of(self._backend)

    def vocabulary(self) -> Vocabulary:
        """The tokens as bytes. Raises ModelLoadError if their bytes cannot be determined."""
        roles = self._turn_roles()
        if self._tokenizer.eos_token_id is not None:
            roles["eos"] = self._tokenizer.eos_token_id
        opened, plain = self.encode("a"), self.encode("a", add_special_tokens=False)
        opening = opened[: opened.index(plain[0])] if plain and plain[0] in opened else []
        try:
            vocabulary = Vocabulary(self._backend, roles, opening=opening, sha256=self.sha256)
        except VocabularyError as error:
            raise ModelLoadError(f"tokenizer of {self._tokenizer.name_or_path}: {error}") from error
        if self.has_chat_template:
            vocabulary.turns = find_turn_markers(partial(self._trial_symbols, vocabulary))
        return vocabulary

    def _trial_symbols(self, vocabulary: Vocabulary, messages: Sequence[Mapping[str, Any]], prompt: bool) -> str:
        """A conversation as the symbols of its tokens, without those that are before every text."""
        text = self._render(messages, (), replace(AS_USUAL, generation_prompt=prompt))
        tokens = self.encode(text, add_special_tokens=False)
        opening = vocabulary.opening
        return vocabulary.symbols(tokens[len(opening) :] if tuple(tokens[: len(opening)]) == opening else tokens)

    def _turn_roles(self) -> dict[str, int]:
        """The special tokens that end and begin a turn of a conversation, by role, as far as there are any."""
        if not self.has_chat_template:
            return {}
        question, answer = "Question 1", "Answer 2"
        asked = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
        rendering = replace(AS_USUAL, generation_prompt=False)
        try:
            rest = self._render(asked, (), rendering).partition(question)[2]
        except Exception:  # noqa: BLE001 - templates are programs of the checkpoint and may raise anything
            return {}
        between, _, after = rest.partition(answer)
        specials = {
            token.content: index for index, token in self._tokenizer.added_tokens_decoder.items() if token.special
        }
        ends, begins = ([(text.find(name), name) for name in specials if name in text] for text in (after, between))
        roles: dict[str, int] = {}
        if ends:
            roles["turn_end"] = specials[min(ends)[1]]
        others = [each for each in begins if each[1] != min(ends, default=(0, ""))[1]]
        if others:
            roles["turn_start"] = specials[min(others)[1]]
        return roles

    def stream(self, *, special_tokens: bool = False, before: Sequence[int] = ()) -> TextStream:
        """A new stream that decodes one sequence. special_tokens: whether special tokens stay in its text. before: the
        last tokens of a text that it goes on from; after none it is a text of its own."""
        return TextStream(self, special_tokens=special_tokens, before=before)


class TextStream:
    """Decodes the ids of one sequence incrementally, without splitting a character."""

    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool = False, before: Sequence[int] = ()):
        self._tokenizer = tokenizer
        self._skips = not special_tokens
        self._decoder = DecodeStream(ids=self._end_of(before), skip_special_tokens=self._skips)
        self._held: list[int] = []

    def _end_of(self, before: Sequence[int]) -> list[int]:
        """The last of some tokens that have a text of whole characters, as far as no special token is behind it; none
        if they do not matter: the first space is taken off a text, but not one after another text."""
        end: list[int] = []
        text = ""
        for token in reversed(before if self._tokenizer.takes_space else ()):
            if (text and not text.endswith(_PARTIAL)) or (self._skips and token in self._tokenizer.specials):
                break
            end.insert(0, token)
            text = self._tokenizer.decode(end, skip_special_tokens=self._skips)
        return [] if text.endswith(_PARTIAL) else end

    def push(self, token_id: int) -> str:
        """The text that became final with this token; empty while a character is incomplete."""
        if self._skips and token_id in self._tokenizer.specials:
            return ""
        if not self._held and self._tokenizer.joins_texts:
            whole = self._tokenizer.decode_one(token_id, skip_special_tokens=self._skips)
            if _PARTIAL not in whole:
                return whole
        try:
            text = self._decoder.step(self._tokenizer._backend, token_id)
        except Exception as error:  # the library raises no narrower type
            if "Invalid prefix" not in str(error):
                raise
            # This token changes how earlier ones decode, as invalid UTF-8 does in tokenizers with tokens for single
            # bytes. Text already returned stays.
            self._decoder = DecodeStream(ids=[token_id], skip_special_tokens=self._skips)
            text = self._tokenizer.decode([*self._held, token_id], skip_special_tokens=self._skips)
        if text is None:
            self._held.append(token_id)
            return "" if len(self._held) <= _MOST_HELD else self._let_go()
        self._held.clear()
        return str(text)

    def _let_go(self) -> str:
        """The text of the held tokens up to the last place at which no character is split.

        Parts of characters may follow one another without end, and never become one.
        """
        held, decode = self._held, partial(self._tokenizer.decode, skip_special_tokens=self._skips)
        whole = decode(held)
        parts = ((decode(held[:-count]), held[-count:]) for count in range(1, len(held)))
        text, rest = next((each for each in parts if each[0] + decode(each[1]) == whole), (whole, []))
        self._held, self._decoder = [], DecodeStream(skip_special_tokens=self._skips)
        return text + "".join(map(self.push, rest))

    def flush(self) -> str:
        """The rest of the text at the end: a character that was never completed, as U+FFFD."""
        text = self._tokenizer.decode(self._held, skip_special_tokens=self._skips)
        self._held.clear()
        return text
