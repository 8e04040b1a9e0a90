"""Texts that ask for what goes between two others."""

from transformers import CodeLlamaTokenizer

from draftwire_core.engine.text.infill import find_infill
from draftwire_core.engine.text.tokenizer import Tokenizer


def test_the_marks_of_a_tokenizer() -> None:
    asked = {
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"): "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<x>"): "<fim_prefix>a<fim_suffix>b<fim_middle>",
        ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"): "[SUFFIX]b[PREFIX]a",
    }
    for added, text in asked.items():
        infill = find_infill(added)
        assert infill is not None and infill.text("a", "b") == text
    assert find_infill(("<|fim_prefix|>", "<|fim_suffix|>")) is None


def code_llama() -> CodeLlamaTokenizer:
    names = ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"]
    return CodeLlamaTokenizer(vocab={name: token for token, name in enumerate(names)}, merges=[("▁", "a")])


def test_a_gap_that_code_llama_fills_changes_no_other_text() -> None:
    tokenizer, theirs = Tokenizer(code_llama()), code_llama()
    before = tokenizer.encode(" a")
    assert before == theirs.encode(" a")
    for _ in range(2):
        assert tokenizer.encode("a<FILL_ME>b") == theirs.encode("a<FILL_ME>b")
        assert tokenizer.encode(" a") == before != theirs.encode(" a"), "transformers leave their own changed"


def test_several_gaps_for_code_llama_are_text() -> None:
    gap = code_llama().convert_tokens_to_ids("<FILL_ME>")
    assert Tokenizer(code_llama()).encode("a<FILL_ME>b<FILL_ME>").count(gap) == 2
