"""Which files of a repository or a directory are a GGUF model, and which one a tag names."""

from __future__ import annotations

import pytest

from draftwire_core.engine.checkpoint.gguf.gguf_name import GgufName, gguf_models, model_with_tag

FILES = [
    "README.md",
    "BF16/m-BF16-00001-of-00002.gguf",
    "BF16/m-BF16-00002-of-00002.gguf",
    "imatrix_unsloth.gguf",
    "m-IQ4_XS.gguf",
    "m-Q8_0.gguf",
    "m-UD-Q4_K_XL.gguf",
    "m.Q4_K_M.gguf",
    "mmproj-Q5_K.gguf",
    "mtp-m-Q2_K.gguf",
]


@pytest.mark.parametrize(
    ("name", "stem", "part", "parts"),
    [
        ("a/m-00002-of-00003.gguf", "a/m", 2, 3),
        ("m-00001-of-00001.gguf", "m", 1, 1),
        ("m-00004-of-00003.gguf", "m-00004-of-00003", 1, 1),
        ("m-00000-of-00003.gguf", "m-00000-of-00003", 1, 1),
        ("m-1-of-3.gguf", "m-1-of-3", 1, 1),
        ("m.gguf", "m", 1, 1),
    ],
)
def test_parts_by_their_names(name: str, stem: str, part: int, parts: int) -> None:
    found = GgufName.of(name)
    assert (found.stem, found.part, found.parts) == (stem, part, parts)
    assert name in found.all_parts() and len(found.all_parts()) == parts


def test_companions_of_models_and_further_parts_are_left_out() -> None:
    assert [name.text for name in gguf_models(FILES)] == [*FILES[1:2], *FILES[4:8]]
    assert [name.tag for name in gguf_models(FILES)] == ["BF16", "IQ4_XS", "Q8_0", "Q4_K_XL", "Q4_K_M"]


@pytest.mark.parametrize(
    ("tag", "file"),
    [
        ("q4_k_m", "m.Q4_K_M.gguf"),
        ("UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("bf16", "BF16/m-BF16-00001-of-00002.gguf"),
        ("F16", None),
        ("Q4_XS", None),
        ("Q5_K", None),
        ("Q2_K", None),
        (".*", None),
        (None, "m.Q4_K_M.gguf"),
    ],
)
def test_a_tag_names_a_model(tag: str | None, file: str | None) -> None:
    found = model_with_tag(gguf_models(FILES), tag)
    assert (found and found.text) == file


def test_the_model_that_is_taken_without_a_tag() -> None:
    for rest, expected in ((["m-Q8_0.gguf", "a-F16.gguf"], "m-Q8_0.gguf"), (["b.gguf", "a.gguf"], "a.gguf")):
        found = model_with_tag(gguf_models(rest), None)
        assert found is not None and found.text == expected
    assert model_with_tag([], None) is None
