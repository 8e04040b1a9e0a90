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
NEW_TOKENS = 24


def library_generate(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    model.generation_config.eos_token_id = None
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_passes_say_what_plain_forwards_say(name: str) -> None:
    model = tiny_model(name)
    engine_model = packed(model)
    texts = [random_tokens(count, seed=count) for count in (33, 7, 50, 20)]
    rows = walk(engine_model, texts, [15, 1, 40, 5], seed=1)
    assert len(rows) > sum(map(len, texts)) // 2
    assert check_against_plain(model, rows) < 1e-4
    assert engine_model.pool.used == 0


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - EXPERTS))
def test_packed_passes_in_bfloat16(name: str) -> None:
    """Equal within rounding. Mixtures of experts are left out: rounding sends tokens to other experts."""
    model = tiny_model(name, torch.bfloat16)
    rows = walk(packed(model), [random_tokens(30, seed=1), random_tokens(11, seed=2)], [12, 4], seed=2)
    assert check_against_plain(model, rows) < 0.25


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_output_is_that_of_the_library(name: str) -> None:
    model = tiny_model(name)
    prompts = [random_tokens(count, seed=count) for count in (19, 3, 30)]
    expected = {index: library_generate(model, prompt) for index, prompt in enumerate(prompts)}
    engine = engine_of(packed(model), max_step_rows=48)
    specs = specs_of(prompts, NEW_TOKENS)

    plain = generate(engine, specs)
    assert plain.tokens == expected
    assert plain.drafted == 0

    right = generate(engine, specs, ScriptedDrafter(expected, accuracy=1.0, siblings=False))
    assert right.tokens == expected
    assert right.accepted == right.drafted > NEW_TOKENS
    assert right.steps < plain.steps / 2

    mixed = generate(engine, specs, ScriptedDrafter(expected, accuracy=0.7))
    assert mixed.tokens == expected
    assert 0 < mixed.accepted < mixed.drafted / 2

    wrong = generate(engine, specs, ScriptedDrafter(expected, accuracy=0.0))
    assert wrong.tokens == expected
    assert wrong.accepted == 0 < wrong.drafted
    assert engine.model.pool.used == 0
