"""Text of streamed tokens, of single tokens, and the positions of tokens in a text."""

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.text.chat_format import ChatFormat
from draftwire_core.engine.text.chat_rendering import ChatRendering
from draftwire_core.engine.text.tokenizer import ChatTemplateError, Tokenizer
from tests.harness.models.byte_tokenizers import END, TEXT, backend

KINDS = ["target", "fallback"]
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@cache
def tokenizer(kind: str, template: str | None = None) -> Tokenizer:
    made = backend(kind)
    made.add_special_tokens([AddedToken("<|turn|>", special=True)])
    made.add_tokens([AddedToken("<think>", special=False)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END[kind], chat_template=template))


def untouched(kind: str) -> Tokenizer:
    """One that no other test has."""
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend(kind), eos_token=END[kind]))


def streamed(tokens: list[int], made: Tokenizer) -> tuple[list[str], str]:
    """Returns the text that each token made final, and the rest."""
    stream = made.stream()
    return [stream.push(token) for token in tokens], stream.flush()


ids = st.lists(st.integers(0, 420), max_size=40)
texts = st.text(st.sampled_from("aé€🐍日本 \n<_"), max_size=20)


class TestStream:
    @pytest.mark.parametrize("kind", KINDS)
    @given(tokens=ids)
    @settings(max_examples=150, deadline=None)
    def test_any_tokens_joined_are_what_all_decode_to(self, kind: str, tokens: list[int]) -> None:
        """Ids of every kind: parts of characters in any order, special ones, and ids without a token.

        With byte tokens, one that is not valid UTF-8 spoils those before it, which may have been output already.
        """
        made = tokenizer(kind)
        pieces, rest = streamed(tokens, made)
        whole = made.decode(tokens)
        if kind == "target" or REPLACEMENT not in whole:
            assert "".join(pieces) + rest == whole
        else:
            assert REPLACEMENT in "".join(pieces) + rest

    @given(tokens=ids)
    @settings(max_examples=150, deadline=None)
    def test_texts_of_whole_tokens_are_those_of_the_librarys_stream(self, tokens: list[int]) -> None:
        made = tokenizer("target")
        assert made.joins_texts
        found = streamed(tokens, made)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made, "joins_texts", False)
            assert streamed(tokens, made) == found

    @given(text=texts)
    @settings(max_examples=100, deadline=None)
    def test_a_tokenizer_that_takes_a_space_off_the_beginning(self, text: str) -> None:
        """Like Llama 2's: only the first space of the text is removed, not that of each piece."""
        made = backend("fallback")
        made.decoder = decoders.Sequence([made.decoder, decoders.Strip(" ", 1, 0)])
        stripping = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END["fallback"]))
        pieces, rest = streamed(stripping.encode(f" {text}", add_special_tokens=False), stripping)
        assert "".join(pieces) + rest == text

    @given(text=texts, cut=st.integers(0, 60))
    @example(text="is Paris", cut=1)
    @example(text="a🐍 b", cut=5)
    @example(text="  a", cut=2)
    @example(text="   ", cut=2)
    @settings(max_examples=100, deadline=None)
    def test_a_text_that_goes_on_keeps_its_first_space(self, text: str, cut: int) -> None:
        made = untouched("spaced")
        tokens = made.encode(text)
        before, after = tokens[:cut], tokens[cut:]
        for skips in (True, False):
            begun, whole = (made.decode(each, skip_special_tokens=skips) for each in (before, tokens))
            stream = made.stream(special_tokens=not skips, before=before)
            written = "".join(map(stream.push, after)) + stream.flush()
            assert REPLACEMENT in begun or begun + written == whole

    def test_a_text_behind_a_special_token_is_one_of_its_own(self) -> None:
        made = untouched("spaced")
        stream = made.stream(before=[*made.encode("a"), min(made.specials)])
        assert "".join(map(stream.push, made.encode("b c", add_special_tokens=False))) == "b c"

    def test_a_text_goes_on_behind_bytes_that_spoil_it(self) -> None:
        made = tokenizer("fallback")
        space, odd = (made.vocabulary().by_spelling[each] for each in (b" ", b"\x80"))
        byte = made._backend.token_to_id("<0x20>")
        following = made.encode(" self 日本", add_special_tokens=False)
        pieces, rest = streamed([space, byte, odd, *following], made)
        assert "".join(pieces) + rest == f"  {REPLACEMENT} self 日本"

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("part", [b"\xe2", b"\x80", b"\xf0\x9f"])
    def test_parts_of_characters_without_end_are_not_held_back(self, kind: str, part: bytes) -> None:
        """Each further token would be decoded with all before it."""
        made = tokenizer(kind)
        spelled = [made.vocabulary().by_spelling[bytes([byte])] for byte in part]
        tokens = [
            *made.encode("a", add_special_tokens=False),
            *spelled * 500,
            *made.encode("日 b", add_special_tokens=False),
        ]
        stream = made.stream()
        pieces = []
        for token in tokens:
            pieces.append(stream.push(token))
            assert len(stream._held) <= 64
        assert "".join(pieces) + stream.flush() == made.decode(tokens)

    @pytest.mark.parametrize("kind", KINDS)
    def test_special_tokens_without_end_are_not_held_back(self, kind: str) -> None:
        made = tokenizer(kind)
        end = made._tokenizer.convert_tokens_to_ids(END[kind])
        stream = made.stream()
        assert "".join(map(stream.push, [*made.encode("a b", add_special_tokens=False), *[end] * 500])) == "a b"
        assert not stream._held

    @pytest.mark.parametrize("kind", KINDS)
    @given(text=texts, cut=st.integers(0, 60))
    @example(text="🐍", cut=2)
    @settings(max_examples=100, deadline=None)
    def test_no_character_is_split(self, kind: str, text: str, cut: int) -> None:
        made = tokenizer(kind)
        pieces, rest = streamed(made.encode(text, add_special_tokens=False)[:cut], made)
        assert not any(REPLACEMENT in piece for piece in pieces), "nothing of an unfinished character"
        assert text.startswith("".join(pieces))
        assert not rest.replace(REPLACEMENT, "")

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_long_text(self, kind: str) -> None:
        made = tokenizer(kind)
        tokens = made.encode("".join(TEXT) * 3)
        pieces, rest = streamed(tokens, made)
        assert "".join(pieces) + rest == "".join(TEXT) * 3


class TestTokenTexts:
    @pytest.mark.parametrize("kind", KINDS)
    @given(text=texts)
    @settings(max_examples=100, deadline=None)
    def test_bytes_joined_are_the_texts(self, kind: str, text: str) -> None:
        made = tokenizer(kind)
        found = [made.texts.of(token) for token in made.encode(text, add_special_tokens=False)]
        assert b"".join(each.text_bytes for each in found) == text.encode()
        assert all(each.text == each.text_bytes.decode(errors="replace") for each in found)

    def test_added_tokens_are_called_by_their_names(self) -> None:
        made = tokenizer("target")
        for name in ("<|turn|>", "<think>", END["target"]):
            (token,) = made.encode(name, add_special_tokens=False)
            assert made.texts.of(token) == (name, name.encode())

    def test_an_id_without_a_token_is_nothing(self) -> None:
        assert tokenizer("target").texts.of(100_000) == ("", b"")


class TestOffsets:
    @pytest.mark.parametrize("kind", KINDS)
    @given(text=texts)
    @settings(max_examples=100, deadline=None)
    def test_each_token_begins_where_its_text_stands(self, kind: str, text: str) -> None:
        made = tokenizer(kind)
        tokens, offsets = made.encode_with_offsets(text, add_special_tokens=False)
        assert tokens == made.encode(text, add_special_tokens=False)
        assert offsets == sorted(offsets)
        for token, offset in zip(tokens, offsets, strict=True):
            whole = made.texts.of(token).text
            if REPLACEMENT not in whole:
                assert text.startswith(whole, offset)

    def test_what_is_put_around_a_text_is_at_its_ends(self) -> None:
        made = backend("target")
        end = made.token_to_id(END["target"])
        made.post_processor = TemplateProcessing(
            single=f"{END['target']} $A {END['target']}", special_tokens=[(END["target"], end)]
        )
        around = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END["target"]))
        tokens, offsets = around.encode_with_offsets("self", add_special_tokens=True)
        assert (tokens[0], tokens[-1]) == (end, end)
        assert (offsets[0], offsets[-1]) == (0, 4)
        assert around.encode_with_offsets("self", add_special_tokens=False)[0] == tokens[1:-1]


PLAIN = "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}{% endfor %}<|turn|>assistant"
STRICT = "{% if messages[0].role != 'system' %}{{ raise_exception('the first has to be system') }}{% endif %}" + PLAIN

LLAVA = (
    "{% for m in messages %}{{ m.role }}:{% for part in m.content | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] + '\n' }}{% endfor %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
SMOL_VLM = (
    "{% for m in messages %}{{ m.role }}{% if m.content[0]['type'] == 'image' %}{% endif %}:{% for part in m.content %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""As transformers' processors have them for these models."""


class TestChat:
    def test_roles_and_system_prompts(self) -> None:
        made = tokenizer("target", PLAIN)
        messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]
        text = made.render_chat(messages)
        assert text == "<|turn|>system\nbe short<|turn|>user\nhi<|turn|>assistant"
        (turn,) = made.encode("<|turn|>", add_special_tokens=False)
        assert made.encode(text, add_special_tokens=False).count(turn) == 3

    @pytest.mark.parametrize(
        ("template", "words"),
        [
            ("{% for m in messages %}\n{{ m.content }", r"template is not valid: .*\(line 2\); .*--chat-template"),
            ("{{ messages[0].content + 1 }}", "the chat template fails: can only concatenate"),
            (STRICT, "^the first has to be system$"),
        ],
    )
    def test_a_template_at_fault_is_told_from_one_that_refuses(self, template: str, words: str) -> None:
        with pytest.raises(ChatTemplateError, match=words):
            tokenizer("target", template).render_chat([{"role": "user", "content": "hi"}])

    @pytest.mark.parametrize("template", [LLAVA, SMOL_VLM])
    def test_templates_of_multimodal_models_get_texts_as_parts(self, template: str) -> None:
        made = tokenizer("target", template)
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
        assert "user:Hi\nassistant:" in made.render_chat(messages[:1])
        assert "user:Hi\nassistant:Yes\n" in made.render_chat(messages)
        assert made.render_chat(messages, rendering=ChatRendering(continues=True)).endswith("assistant:Yes")

    @pytest.mark.parametrize(("template", "encoding"), [(PLAIN, "utf-8"), (STRICT, "utf-8"), (PLAIN, "utf-8-sig")])
    def test_one_of_a_file_takes_the_place_of_its_own(self, template: str, encoding: str, tmp_path: Path) -> None:
        file = tmp_path / "chat.jinja"
        file.write_text(template, encoding=encoding)
        made = untouched("target")
        assert not made.has_chat_template and made.chat_format == ChatFormat()
        made.use_chat_template(file)
        messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]
        assert made.render_chat(messages) == tokenizer("target", template).render_chat(messages)

    @pytest.mark.parametrize(
        ("name", "content"),
        [("chat_template.json", json.dumps({"chat_template": PLAIN})), ("chat_template.jinja", f"\ufeff{PLAIN}")],
        ids=["of a processor alone", "after a byte order mark"],
    )
    def test_one_in_a_file_next_to_the_tokenizer(self, name: str, content: str, tmp_path: Path) -> None:
        untouched("target").save(tmp_path)
        (tmp_path / name).write_text(content)
        messages = [{"role": "user", "content": "hi"}]
        expected = tokenizer("target", PLAIN).render_chat(messages)
        assert Tokenizer.load(str(tmp_path)).render_chat(messages) == expected

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("{% if %}", "does not render"),
            ("{{ raise_exception('no') }}", "no$"),
            ("\xff", "cannot be read"),
            (None, "read"),
        ],
    )
    def test_a_file_that_has_none_is_named(self, content: str | None, words: str, tmp_path: Path) -> None:
        file = tmp_path / "chat.jinja"
        if content is not None:
            file.write_bytes(content.encode("latin-1"))
        with pytest.raises(ModelLoadError, match=f"chat template .*chat.jinja: .*{words}"):
            untouched("target").use_chat_template(file)

    @pytest.mark.parametrize(
        "attempt",
        [
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ messages.__class__.__base__.__subclasses__() }}",
            "{{ raise_exception.__globals__['os'].system('true') }}",
            "{{ messages.append(1) }}",
        ],
    )
    def test_a_template_cannot_leave_its_sandbox(self, attempt: str) -> None:
        with pytest.raises(ChatTemplateError, match=r"unsafe|not safely callable|undefined"):
            tokenizer("target", attempt).render_chat([{"role": "user", "content": "hi"}])
