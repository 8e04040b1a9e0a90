"""The bound on a text's size holds for every text, and is assumed where there is none."""

import json
import unicodedata
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from draftwire_core.engine.text.text_bound import bytes_per_token
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.models.byte_tokenizers import END, TEXT, backend

NORMALIZERS: dict[str, Any] = {
    "none": None,
    "NFC": normalizers.NFC(),
    "NFKC": normalizers.NFKC(),
    "NFD and lower case": normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()]),
    "prepended": normalizers.Prepend("_"),
    "replaced by less": normalizers.Replace("self", "s"),
}


@cache
def tokenizer(kind: str, normalizer: str = "none") -> Tokenizer:
    made = backend(kind)
    steps = [each for each in (NORMALIZERS[normalizer], made.normalizer) if each is not None]
    if steps:
        made.normalizer = normalizers.Sequence(steps)
    made.add_special_tokens([AddedToken("<|turn|>", special=True)])
    made.add_tokens([AddedToken("<a token of many bytes>", special=False)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END[kind]))


def parts_of(made: Backend) -> dict[str, Any]:
    parts: dict[str, Any] = json.loads(made.to_str())
    return parts


pieces = st.sampled_from(
    [*"".join(TEXT), "self", "other", "<|turn|>", "<a token of many bytes>", "\N{KELVIN SIGN}", "\U0001d400",
     "e\N{COMBINING CIRCUMFLEX ACCENT}\N{COMBINING ACUTE ACCENT}", "\u1112\u1161\u11ab", "\ufb03", "▁", "🐍"]
)  # fmt: skip
texts = st.lists(pieces | st.characters(exclude_categories=["Cs"]), max_size=30).map("".join)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("kind", ["target", "draft", "fallback"])
@given(text=texts)
@settings(max_examples=40, deadline=None)
def test_no_text_has_more_bytes_for_its_tokens(kind: str, normalizer: str, text: str) -> None:
    made = tokenizer(kind, normalizer)
    assert len(text.encode()) <= made.bytes_per_token * len(made.encode(text))


def test_of_byte_level_tokens_it_is_the_longest() -> None:
    made = backend("target")
    longest = max(len(made.decode([token], skip_special_tokens=False).encode()) for token in made.get_vocab().values())
    assert bytes_per_token(parts_of(made)) == longest


def check_characters(first: int, last: int) -> None:
    for code in (code for code in range(first, last) if not 0xD800 <= code < 0xE000):
        character = chr(code)
        size = len(character.encode())
        for shrunk in (*(unicodedata.normalize(form, character) for form in ("NFC", "NFD", "NFKC", "NFKD")),
                       character.lower()):  # fmt: skip
            assert size <= 4 * len(shrunk.encode()), hex(code)


def test_unicode_shrinks_no_character_further_than_assumed() -> None:
    check_characters(0, 0x10000)


@pytest.mark.slow
class TestAllOfUnicode:
    def test_it_shrinks_no_character_further_than_assumed(self) -> None:
        check_characters(0x10000, 0x110000)


def words(**options: Any) -> Backend:
    return Backend(models.BPE(vocab={"a": 0, "<unk>": 1, "b": 2}, merges=[], **options))


def test_unknown_characters_of_their_own_have_a_bound() -> None:
    assert bytes_per_token(parts_of(words(unk_token="<unk>"))) == len("<unk>")


def unbounded(name: str) -> Backend:
    if name == "unknown characters are left out":
        return words()
    if name == "unknown characters become one token":
        return words(unk_token="<unk>", fuse_unk=True)
    if name == "words":
        return Backend(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    made = backend("target")
    if name == "spaces are left out":
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), made.pre_tokenizer])
    elif name == "a mark is left out":
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("-", "removed"), made.pre_tokenizer])
    elif name == "accents are left out":
        made.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    elif name == "spaces are joined":
        made.normalizer = normalizers.Replace(Regex(" +"), " ")
    elif name == "a mark is deleted":
        made.normalizer = normalizers.Replace("-", "")
    elif name == "spaces at the ends are left out":
        made.normalizer = normalizers.Strip()
    elif name == "a token swallows spaces":
        made.add_special_tokens([AddedToken("<|turn|>", special=True, rstrip=True)])
    return made


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unknown characters are left out", "a" + "z" * 5000),
        ("unknown characters become one token", "z" * 5000),
        ("words", "z" * 5000),
        ("spaces are left out", "a" + " " * 5000),
        ("a mark is left out", "a" + "-" * 5000),
        ("accents are left out", "a" + "\N{COMBINING ACUTE ACCENT}" * 5000),
        ("spaces are joined", "a" + " " * 5000),
        ("a mark is deleted", "a" + "-" * 5000),
        ("spaces at the ends are left out", "a" + " " * 5000),
        ("a token swallows spaces", "<|turn|>" + " " * 5000),
    ],
    ids=lambda given: given if len(given) < 100 else "",
)
def test_where_tokens_stand_for_any_number_of_bytes_room_is_assumed(name: str, text: str) -> None:
    made = unbounded(name)
    assert len(made.encode(text, add_special_tokens=False).ids) <= 2, "no number of bytes would be a bound"
    assert bytes_per_token(parts_of(made)) == 64


class TestEncoding:
    """The direct way gives the same ids as transformers."""

    @pytest.mark.parametrize("normalizer", ["none", "NFKC"])
    @pytest.mark.parametrize("kind", ["target", "draft", "fallback"])
    @given(text=texts, special=st.booleans())
    @settings(max_examples=40, deadline=None)
    def test_ids_are_the_librarys(self, kind: str, normalizer: str, text: str, special: bool) -> None:
        made = tokenizer(kind, normalizer)
        assert made.encode(text, add_special_tokens=special) == made._tokenizer.encode(text, add_special_tokens=special)

    def test_a_family_with_a_way_of_its_own_keeps_it(self) -> None:
        class Reversing(PreTrainedTokenizerFast):  # type: ignore[misc]
            def _encode_plus(self, text: Any, *arguments: Any, **options: Any) -> Any:
                return super()._encode_plus(text[::-1], *arguments, **options)

        made = Tokenizer(Reversing(tokenizer_object=backend("target")))
        assert made.encode("self") == tokenizer("target").encode("fles")

    @pytest.mark.parametrize("split", [True, False])
    def test_marks_in_a_text_are_special_or_not_as_the_checkpoint_says(self, split: bool) -> None:
        library = PreTrainedTokenizerFast(tokenizer_object=backend("target"), split_special_tokens=split)
        made = Tokenizer(library)
        assert made.encode(END["target"]) == library.encode(END["target"])
        assert (len(made.encode(END["target"])) > 1) == split

    @pytest.mark.parametrize("number", [0, 1, 256, 257, 2000])
    def test_many_tokens_are_decoded_as_few_are(self, number: int) -> None:
        made = tokenizer("target")
        tokens = (made.encode("".join(TEXT)) * 20)[:number]
        assert made.decode(tokens) == made._backend.decode(tokens)
