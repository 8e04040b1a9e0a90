"""Texts that ask for what goes between two others."""

from draftwire_core.engine.text.infill import find_infill


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
