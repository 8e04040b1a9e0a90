"""Law 1, bit by bit: a row's logits, and so every token, do not depend on the rest of the pass. No tolerances."""

import pytest
import torch

from draftwire_core.engine.device.choices import Kernels, KvDtype
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.kernels.library import kernels_in_use, use_kernels
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import (
    GREEDY,
    Rows,
    ScriptedDrafter,
    engine_of,
    generate,
    packed,
    random_tokens,
    specs_of,
    tiny_model,
    walk,
)
from tests.harness.engine.fused_models import fused_model

FUSED = {"hidden_size": 128, "intermediate_size": 176, "head_dim": 32}
"""Sizes at which fused layers replace transformers' layers, if there is a C compiler."""
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "heads alike": ("Llama", {"num_key_value_heads": 4}),
    "grouped heads": ("Llama", {}),
    "three queries a key": ("Llama", {"hidden_size": 96, "num_attention_heads": 6}),
    "heads of 24": ("Llama", {"hidden_size": 96, "num_attention_heads": 4}),
    "one key head": ("Llama", {"num_attention_heads": 8, "num_key_value_heads": 1}),
    "odd widths": (
        "Llama",
        {"hidden_size": 72, "intermediate_size": 101, "num_attention_heads": 3, "num_key_value_heads": 3},
    ),
    "wide": ("Llama", {"intermediate_size": 1300, "num_hidden_layers": 2}),
    "odd vocabulary": ("Llama", {"vocab_size": 317}),
    "biases": ("Qwen2", {}),
    "normed queries": ("Qwen3", {}),
    "sliding window": ("Mistral", {"sliding_window": 150}),
    "fused": ("Llama", FUSED),
    "fused, biases": ("Qwen2", FUSED),
    "fused, normed heads": ("Qwen3", FUSED),
    "fused, sliding window": ("Mistral", {**FUSED, "sliding_window": 150}),
    "softcap": ("Gemma2", {"sliding_window": 100, "attn_logit_softcapping": 5.0}),
    "sinks": ("GptOss", {"sliding_window": 100}),
    "learned positions": ("GPT2", {}),
    "partial rotation": ("GPTNeoX", {}),
}
DTYPES = [torch.float32, torch.bfloat16]


def assert_same_bits(found: Rows, expected: Rows) -> None:
    shared = found.keys() & expected.keys()
    assert len(shared) >= len(found) / 4
    different = [len(prefix) for prefix in shared if not torch.equal(found[prefix], expected[prefix])]
    assert not different, f"{len(different)} of {len(shared)} rows differ, the shortest after {min(different)} tokens"


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("grouped heads", torch.float32),
        ("odd widths", torch.bfloat16),
        ("fused", torch.bfloat16),
        ("fused, sliding window", torch.float32),
        ("softcap", torch.float32),
        ("sinks", torch.bfloat16),
        ("learned positions", torch.float32),
    ],
    ids=str,
)
def test_rows_have_the_same_bits_in_any_batch(case: str, dtype: torch.dtype) -> None:
    check_case(case, dtype)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("experts, sinks", torch.bfloat16),
        ("gated attention, delta nets", torch.float32),
        ("short convolutions", torch.bfloat16),
    ],
    ids=str,
)
def test_so_they_have_between_blocks_of_transformers(case: str, dtype: torch.dtype) -> None:
    check_batch_invariance(packed(fused_model(case, dtype)))


@pytest.mark.slow
class TestEveryModel:
    @pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
    @pytest.mark.parametrize("case", CASES)
    def test_rows_have_the_same_bits_in_any_batch(self, case: str, dtype: torch.dtype) -> None:
        check_case(case, dtype)

    @pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
    @pytest.mark.parametrize(
        "case",
        [
            "inputs by token, shared keys",
            "experts, sinks",
            "experts, each with norms",
            "gated attention, delta nets",
            "short convolutions",
        ],
    )
    def test_so_they_have_between_blocks_of_transformers(self, case: str, dtype: torch.dtype) -> None:
        check_batch_invariance(packed(fused_model(case, dtype)))


def check_case(case: str, dtype: torch.dtype) -> None:
    name, changes = CASES[case]
    check_batch_invariance(packed(tiny_model(name, dtype, **changes)))


def check_batch_invariance(model: PackedModel) -> None:
    # Contexts that cross the first and the second block of 128 keys, and a short one.
    texts = [random_tokens(132, seed=1), random_tokens(261, seed=2), random_tokens(17, seed=3)]
    prompts = [120, 249, 5]
    one_by_one = walk(model, texts, prompts, trees=False, chunk=128, together=False)
    assert_same_bits(walk(model, texts, prompts, seed=1, chunk=64), one_by_one)
    assert_same_bits(walk(model, texts, prompts, seed=2, chunk=300, together=False), one_by_one)
    # Resumed: earlier output is part of the prompt.
    assert_same_bits(walk(model, texts, [126, 254, 11], seed=3, chunk=48), one_by_one)


IN_8_BITS: dict[str, tuple[str, dict[str, object]]] = {
    "fused": ("Llama", FUSED),
    "fused, sliding window": ("Mistral", {**FUSED, "sliding_window": 150}),
    "softcap": ("Gemma2", {"head_dim": 32, "sliding_window": 100, "attn_logit_softcapping": 5.0}),
    "learned positions": ("GPT2", {"n_embd": 128}),
}


@pytest.mark.parametrize(
    ("case", "dtype", "kernels"),
    [
        ("fused", torch.bfloat16, "auto"),
        ("fused, sliding window", torch.float32, "torch"),
        ("softcap", torch.float32, "auto"),
    ],
    ids=str,
)
def test_rows_have_the_same_bits_with_keys_and_values_in_8_bits(
    case: str, dtype: torch.dtype, kernels: Kernels
) -> None:
    check_8_bits(case, dtype, kernels)


@pytest.mark.slow
class TestEveryModelIn8Bits:
    @pytest.mark.parametrize("kernels", ["auto", "torch"])
    @pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
    @pytest.mark.parametrize("case", IN_8_BITS)
    def test_rows_have_the_same_bits(self, case: str, dtype: torch.dtype, kernels: Kernels) -> None:
        check_8_bits(case, dtype, kernels)


def check_8_bits(case: str, dtype: torch.dtype, kernels: Kernels) -> None:
    name, changes = IN_8_BITS[case]
    before = kernels_in_use()
    use_kernels(kernels)
    try:
        model = packed(tiny_model(name, dtype, **changes), kv_dtype="q8_0")
        texts = [random_tokens(132, seed=1), random_tokens(261, seed=2), random_tokens(17, seed=3)]
        prompts = [120, 249, 5]
        one_by_one = walk(model, texts, prompts, trees=False, chunk=128, together=False)
        assert_same_bits(walk(model, texts, prompts, seed=1, chunk=64), one_by_one)
        assert_same_bits(walk(model, texts, [126, 254, 11], seed=3, chunk=48), one_by_one)
    finally:
        use_kernels(before)


def test_many_blocks_of_keys() -> None:
    check_many_blocks(torch.bfloat16)


@pytest.mark.slow
class TestManyBlocksOfKeys:
    @pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
    def test_rows_have_the_same_bits(self, dtype: torch.dtype) -> None:
        check_many_blocks(dtype)


def check_many_blocks(dtype: torch.dtype) -> None:
    """The order in which torch.sum adds nine blocks, for example, depends on the number of query rows."""
    model = packed(tiny_model("Llama", dtype, num_hidden_layers=1))
    texts = [random_tokens(1118, seed=1), random_tokens(712, seed=2)]
    prompts = [1100, 700]
    alone = walk(model, texts, prompts, trees=False, chunk=400, together=False)
    assert_same_bits(walk(model, texts, prompts, seed=1, chunk=400), alone)
    assert_same_bits(walk(model, texts, [1105, 702], seed=2, chunk=1150), alone)


def test_threads_change_no_bit() -> None:
    """With the same number of threads throughout, each row has the same bits in any batch."""
    check_threads(torch.bfloat16, 3)


@pytest.mark.slow
class TestThreads:
    @pytest.mark.parametrize("threads", [2, 3])
    @pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
    def test_they_change_no_bit(self, dtype: torch.dtype, threads: int) -> None:
        check_threads(dtype, threads)


def check_threads(dtype: torch.dtype, threads: int) -> None:
    torch.set_num_threads(threads)
    model = packed(tiny_model("Llama", dtype, intermediate_size=1300, num_hidden_layers=1))
    texts = [random_tokens(400, seed=1), random_tokens(30, seed=2)]
    alone = walk(model, texts, [380, 5], trees=False, chunk=400, together=False)
    assert_same_bits(walk(model, texts, [380, 10], seed=1, chunk=90), alone)


SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=1.2, top_p=0.95, seed=2),
    SamplingParams(temperature=1.0, top_k=40, min_p=0.01, seed=3),
    SamplingParams(temperature=0.7, seed=4),
]


@pytest.mark.parametrize(
    ("case", "kv_dtype", "dtype"),
    [
        ("sliding window", "auto", torch.float32),
        ("fused", "q8_0", torch.bfloat16),
        ("softcap", "float16", torch.float32),
    ],
    ids=str,
)
def test_tokens_are_the_same_however_they_come_about(case: str, kv_dtype: KvDtype, dtype: torch.dtype) -> None:
    check_tokens(case, kv_dtype, dtype)


@pytest.mark.slow
class TestTokensOfMoreModels:
    @pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
    @pytest.mark.parametrize(
        ("case", "kv_dtype"),
        [
            ("grouped heads", "auto"),
            ("wide", "auto"),
            ("sliding window", "auto"),
            ("softcap", "auto"),
            ("fused", "q8_0"),
            ("fused", "float16"),
            ("softcap", "float16"),
        ],
    )
    def test_they_are_the_same_however_they_come_about(self, case: str, kv_dtype: KvDtype, dtype: torch.dtype) -> None:
        check_tokens(case, kv_dtype, dtype)


def check_tokens(case: str, kv_dtype: KvDtype, dtype: torch.dtype) -> None:
    name, changes = CASES[case]
    model = packed(tiny_model(name, dtype, **changes), kv_dtype=kv_dtype)
    prompts = [random_tokens(count, seed=count) for count in (124, 7, 60, 1, 120)]
    specs = specs_of(prompts, 10, SAMPLINGS)
    alone = generate(engine_of(model), specs, together=False)
    outputs = alone.tokens
    assert len({tuple(tokens) for tokens in outputs.values()}) == len(prompts)

    batched = generate(engine_of(model), specs)
    assert batched.tokens == outputs and batched.steps < alone.steps
    chunked = generate(engine_of(model, max_step_rows=16), specs)
    assert chunked.tokens == outputs
    speculative = generate(engine_of(model), specs, ScriptedDrafter(outputs))
    assert speculative.tokens == outputs and speculative.accepted > 10
    speculative_alone = generate(engine_of(model), specs, ScriptedDrafter(outputs, seed=1), together=False)
    assert speculative_alone.tokens == outputs
    all_at_once = generate(engine_of(model, max_step_rows=24), specs, ScriptedDrafter(outputs, accuracy=0.5))
    assert all_at_once.tokens == outputs

    resumed = [
        SequenceSpec(spec.sequence_id, [*spec.tokens, *outputs[spec.sequence_id][:6]], spec.max_length, spec.sampling)
        for spec in specs
    ]
    rest = {sequence_id: tokens[6:] for sequence_id, tokens in outputs.items()}
    assert generate(engine_of(model), resumed).tokens == rest
    assert generate(engine_of(model), resumed, ScriptedDrafter(rest)).tokens == rest
