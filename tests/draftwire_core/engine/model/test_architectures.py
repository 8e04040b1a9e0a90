"""Packed passes against transformers' own forward passes, over its architectures."""

import pytest
import torch
from transformers import PreTrainedModel

from tests.harness.engine.engines import (
    ARCHITECTURES,
    ScriptedDrafter,
    check_against_plain,
    engine_of,
    generate,
    packed,
    random_tokens,
    specs_of,
    tiny_model,
    walk,
)

EXPERTS = {"Mixtral", "Qwen3Moe", "GptOss"}


def library_generate(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    model.generation_config.eos_token_id = None
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=count,
    )
    return out[0, len(prompt) :].tolist()


def check_says(name: str, lengths: tuple[int, ...], prompts: list[int]) -> None:
    model = tiny_model(name)
    engine_model = packed(model)
    texts = [random_tokens(count, seed=count) for count in lengths]
    rows = walk(engine_model, texts, prompts, seed=1)
    assert len(rows) > sum(lengths) // 2
    assert check_against_plain(model, rows) < 1e-4
    assert engine_model.pool.used == 0


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_passes_say_what_plain_forwards_say(name: str) -> None:
    check_says(name, (19, 7), [12, 1])


def check_bfloat16(name: str, lengths: tuple[int, int], prompts: list[int]) -> None:
    """Equal within rounding. Mixtures of experts are left out: rounding sends tokens to other experts."""
    model = tiny_model(name, torch.bfloat16)
    rows = walk(packed(model), [random_tokens(lengths[0], seed=1), random_tokens(lengths[1], seed=2)], prompts, seed=2)
    assert check_against_plain(model, rows) < 0.25


@pytest.mark.parametrize("name", ["Cohere", "GPT2", "Gemma2", "Qwen2"])
def test_packed_passes_in_bfloat16(name: str) -> None:
    """Of layers that are compiled, and of others."""
    check_bfloat16(name, (18, 11), [12, 4])


def check_greedy(name: str, count: int) -> None:
    """Greedy output of so many tokens a sequence is the library's, without drafts and with right and wrong ones."""
    model = tiny_model(name)
    prompts = [random_tokens(length, seed=length) for length in (19, 3, 30)]
    expected = {index: library_generate(model, prompt, count) for index, prompt in enumerate(prompts)}
    engine = engine_of(packed(model), max_step_rows=48)
    specs = specs_of(prompts, count)

    plain = generate(engine, specs)
    assert plain.tokens == expected
    assert plain.drafted == 0

    right = generate(engine, specs, ScriptedDrafter(expected, accuracy=1.0, siblings=False))
    assert right.tokens == expected
    assert right.accepted == right.drafted > count
    assert right.steps < plain.steps * 2 / 3

    mixed = generate(engine, specs, ScriptedDrafter(expected, accuracy=0.7))
    assert mixed.tokens == expected
    assert 0 < mixed.accepted < mixed.drafted / 2

    wrong = generate(engine, specs, ScriptedDrafter(expected, accuracy=0.0))
    assert wrong.tokens == expected
    assert wrong.accepted == 0 < wrong.drafted
    assert engine.model.pool.used == 0


@pytest.mark.parametrize("name", ["GPT2", "GptOss"])
def test_greedy_output_is_that_of_the_library(name: str) -> None:
    check_greedy(name, 10)


@pytest.mark.slow
class TestAll:
    """All architectures, in longer walks and outputs."""

    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_packed_passes_say_what_plain_forwards_say(self, name: str) -> None:
        check_says(name, (33, 7, 50, 20), [15, 1, 40, 5])

    @pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - EXPERTS))
    def test_packed_passes_in_bfloat16(self, name: str) -> None:
        check_bfloat16(name, (30, 11), [12, 4])

    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_greedy_output_is_that_of_the_library(self, name: str) -> None:
        check_greedy(name, 24)
