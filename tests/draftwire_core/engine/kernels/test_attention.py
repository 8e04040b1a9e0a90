"""The compiled attention: its results, and that a row's bits do not depend on other rows."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from draftwire_core.engine.kernels import attention as compiled_attention
from draftwire_core.engine.kernels.attention import ScratchSize, SlotLanes, attend
from draftwire_core.engine.kernels.kv_rows import as_float16, rounded, widened
from draftwire_core.engine.kernels.library import available_kernels, kernels_in_use, use_kernels
from draftwire_core.engine.model.attention import packed_attention
from tests.harness.engine.engines import packed, random_tokens, tiny_model, walk

pytestmark = pytest.mark.skipif(compiled_attention.library() is None, reason="not built: there is no C compiler")

SLOTS = 700


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def stored(kv_heads: int, dim: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(kv_heads, SLOTS, dim, generator=torch.Generator().manual_seed(seed)).to(dtype)


def lanes_of(paths: list[list[int]], firsts: list[int]) -> SlotLanes:
    """Returns lanes over slots; the positions of lane i from `firsts[i]` on are queries, with rows of their own."""
    counts = [np.arange(first, len(path)) + 1 for path, first in zip(paths, firsts, strict=True)]
    begins = np.cumsum([0, *map(len, paths)])[:-1]
    queries = np.cumsum([0, *map(len, counts)])
    return SlotLanes(
        seen=np.concatenate(paths).astype(np.int64),
        lanes=np.stack([begins, queries[:-1], queries[1:]], axis=1).astype(np.int64),
        rows=np.arange(queries[-1]),
        counts=np.concatenate(counts).astype(np.int64),
        longest=max(map(len, paths)),
        widest=max(map(len, counts)),
    )


def slots(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).permutation(SLOTS)[:count].tolist()


def by_hand(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, path: list[int], window: int | None,
    softcap: float | None, sinks: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Computes the attention of one query [heads, dim] in float64."""
    shared = len(query) // len(keys)
    path = path[-window:] if window else path
    out = []
    for head, row in enumerate(query.double()):
        scores = keys[head // shared, path].double() @ row
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        if sinks is not None:
            scores = torch.cat([scores, sinks[head : head + 1].double()])
        weights = scores.softmax(0)[: len(path)]
        out.append(weights @ values[head // shared, path].double())
    return torch.stack(out)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
@pytest.mark.parametrize("shared", [1, 3, 8])
@pytest.mark.parametrize(("key_dim", "value_dim"), [(16, 16), (32, 32), (64, 64), (80, 80), (128, 128), (192, 128)])
def test_it_is_attention(key_dim: int, value_dim: int, shared: int, dtype: torch.dtype) -> None:
    keys, values = stored(2, key_dim, dtype, 1), stored(2, value_dim, dtype, 2)
    paths = [slots(37, 1), slots(200, 2)]
    lanes = lanes_of(paths, [36, 150])
    query = torch.randn(2 * shared, len(lanes.rows), key_dim) / math.sqrt(key_dim)
    found = attend(lanes, query, keys, values, None, None, None)
    assert found.shape == (51, 2 * shared, value_dim)
    for row, path in ((0, paths[0]), (1, paths[1][:151]), (50, paths[1])):
        expected = by_hand(query[:, row], keys, values, path, None, None, None)
        torch.testing.assert_close(found[row].double(), expected, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sunk", [False, True])
def test_windows_caps_and_sinks(window: int | None, softcap: float | None, sunk: bool) -> None:
    keys, values = stored(2, 32, torch.float32, 1), stored(2, 32, torch.float32, 2)
    sinks = torch.randn(4) if sunk else None
    path = slots(90)
    query = torch.randn(4, 90, 32) / math.sqrt(32)
    found = attend(lanes_of([path], [0]), query, keys, values, window, softcap, sinks)
    for row in (0, 5, 19, 20, 21, 89):
        expected = by_hand(query[:, row], keys, values, path[: row + 1], window, softcap, sinks)
        torch.testing.assert_close(found[row].double(), expected, atol=2e-6, rtol=2e-5)


def test_scores_far_apart() -> None:
    """Vanishing weights, and sums that would overflow if computed carelessly."""
    keys, values = stored(1, 16, torch.float32, 1), stored(1, 16, torch.float32, 2)
    query = 300 * torch.randn(1, 60, 16)
    path = slots(60)
    found = attend(lanes_of([path], [0]), query, keys, values, None, None, None)
    assert found.isfinite().all()
    expected = by_hand(query[:, 59], keys, values, path, None, None, None)
    torch.testing.assert_close(found[59].double(), expected, atol=1e-4, rtol=1e-4)


def test_what_is_no_number_stays_with_its_row() -> None:
    keys, values = stored(1, 16, torch.float32, 1), stored(1, 16, torch.float32, 2)
    query = torch.randn(1, 40, 16)
    query[0, 7] = torch.nan
    found = attend(lanes_of([slots(40)], [0]), query, keys, values, None, None, None)
    assert found[7].isnan().all()
    assert found[:7].isfinite().all() and found[8:].isfinite().all()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("window", [None, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_row_has_the_same_bits_alone_in_a_chunk_and_beside_others(dtype: torch.dtype, window: int | None) -> None:
    keys, values = stored(2, 64, dtype, 1), stored(2, 64, dtype, 2)
    path, other = slots(300, 1), slots(410, 2)
    query = torch.randn(6, 300, 64)
    chunk = attend(lanes_of([path], [0]), query, keys, values, window, None, None)
    for position in (0, 1, 15, 16, 63, 150, 298, 299):
        alone = attend(
            lanes_of([path[: position + 1]], [position]), query[:, position : position + 1].contiguous(),
            keys, values, window, None, None,
        )  # fmt: skip
        assert torch.equal(alone[0], chunk[position])
        beside = torch.cat([torch.randn(6, 30, 64), query[:, position : position + 1], torch.randn(6, 3, 64)], dim=1)
        mixed = lanes_of([other[:60], path[: position + 1], other], [30, position, 407])
        assert torch.equal(attend(mixed, beside, keys, values, window, None, None)[30], chunk[position])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("window", [None, 33])
@pytest.mark.parametrize(("key_dim", "value_dim"), [(32, 64), (96, 32), (192, 128)])
@pytest.mark.parametrize("shared", [1, 3, 8])
def test_keys_and_values_in_8_bits_are_read_as_what_they_stand_for(
    shared: int, key_dim: int, value_dim: int, window: int | None
) -> None:
    """They are exact in float32, so each row has the bits that float32 keys and values would give it."""
    keys, values = (rounded(stored(2, dim, torch.bfloat16, dim)) for dim in (key_dim, value_dim))
    lanes = lanes_of([slots(300, 1), slots(210, 2), slots(20, 3)], [250, 209, 10])
    query = torch.randn(2 * shared, len(lanes.rows), key_dim) / math.sqrt(key_dim)
    found = attend(lanes, query, keys, values, window, None, None)
    assert torch.equal(found, attend(lanes, query, widened(keys), widened(values), window, None, None))


def test_every_kind_of_vectors_reads_8_bits_alike() -> None:
    keys, values = (rounded(stored(2, 64, torch.bfloat16, seed)) for seed in (1, 2))
    lanes = lanes_of([slots(300, 1)], [290])
    query = torch.randn(6, 10, 64)
    before = kernels_in_use()
    try:
        for kernels in set(available_kernels()) & {"baseline", "avx2", "avx512"}:
            use_kernels(kernels)
            found = attend(lanes, query, keys, values, None, None, None)
            assert torch.equal(found, attend(lanes, query, widened(keys), widened(values), None, None, None))
    finally:
        use_kernels(before)


def test_every_kind_of_vectors_reads_float16_exactly() -> None:
    """Float32 numbers with the same values give the same bits; some are below the normal float16 numbers."""
    keys, values = (as_float16(stored(2, 64, torch.float32, seed) ** 9 * 1e-5) for seed in (1, 2))
    assert ((keys.abs() < 6e-5) & (keys != 0)).any()
    keys[0, 5, 3] = values[1, 7, 9] = torch.nan
    lanes = lanes_of([slots(300, 1)], [290])
    query = torch.randn(6, 10, 64)
    before = kernels_in_use()
    try:
        for kernels in set(available_kernels()) & {"baseline", "avx2", "avx512"}:
            use_kernels(kernels)
            found = attend(lanes, query, keys, values, None, None, None)
            expected = attend(lanes, query, keys.float(), values.float(), None, None, None)
            assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    finally:
        use_kernels(before)


@pytest.mark.parametrize("window", [None, 33])
def test_threads_change_no_bit(window: int | None) -> None:
    keys, values = stored(2, 64, torch.bfloat16, 1), stored(2, 64, torch.bfloat16, 2)
    lanes = lanes_of([slots(300, 1), slots(410, 2), slots(20, 3)], [0, 409, 10])
    query = torch.randn(6, len(lanes.rows), 64)
    alone = attend(lanes, query, keys, values, window, None, None)
    for count in (2, 3, 20):
        torch.set_num_threads(count)
        assert torch.equal(attend(lanes, query, keys, values, window, None, None), alone)


@pytest.mark.parametrize("window", [None, 33])
def test_the_memory_for_scores_changes_no_bit(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, values = stored(2, 64, torch.bfloat16, 1), stored(2, 64, torch.bfloat16, 2)
    lanes = lanes_of([slots(300, 1), slots(410, 2), slots(20, 3)], [0, 409, 10])
    query = torch.randn(6, len(lanes.rows), 64)
    whole = attend(lanes, query, keys, values, window, None, None)
    for queries in (0, 1, 3):  # of a tile; one at least
        room = queries * torch.get_num_threads() * 3 * ScratchSize.of(lanes, 3, 1).longest
        monkeypatch.setattr(compiled_attention, "_MOST_SCORES", room)
        assert torch.equal(attend(lanes, query, keys, values, window, None, None), whole)


def test_scores_of_a_long_context_take_bounded_memory() -> None:
    none = np.empty(0, dtype=np.int64)
    lanes = SlotLanes(none, none.reshape(0, 3), none, none, longest=1 << 17, widest=256)
    assert 4 * 64 * ScratchSize.of(lanes, 8, 64).scores <= 1 << 30
    assert ScratchSize.of(lanes, 8, 2).scores == 16 * 8 * ScratchSize.of(lanes, 8, 2).longest  # few threads need none


def test_the_slots_a_sequence_has_change_no_bit() -> None:
    keys, values = stored(2, 32, torch.bfloat16, 1), stored(2, 32, torch.bfloat16, 2)
    path = slots(120, 1)
    query = torch.randn(4, 1, 32)
    here = attend(lanes_of([path], [119]), query, keys, values, None, None, None)
    moved = list(range(100, 220))
    keys[:, moved], values[:, moved] = keys[:, path].clone(), values[:, path].clone()
    assert torch.equal(attend(lanes_of([moved], [119]), query, keys, values, None, None, None), here)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_model_says_what_it_says_with_torchs_attention(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("Llama", dtype, head_dim=32)
    texts = [random_tokens(150, seed=1), random_tokens(40, seed=2)]
    compiled = walk(packed(model), texts, [20, 5])
    monkeypatch.setattr(packed_attention.compiled_attention, "fits", lambda keys, values: False)
    plain = walk(packed(model), texts, [20, 5])
    assert compiled.keys() == plain.keys()
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    assert max((compiled[prefix].float() - plain[prefix].float()).abs().max() for prefix in plain) < tolerance


@pytest.mark.usefixtures("threads")
def test_a_models_rows_have_the_same_bits_in_other_walks() -> None:
    model = packed(tiny_model("Llama", torch.bfloat16, head_dim=32))
    texts = [random_tokens(150, seed=1), random_tokens(90, seed=2)]
    alone = walk(model, texts, [20, 5], trees=False, chunk=400)
    beside = walk(model, texts, [20, 5], seed=3, chunk=33)
    common = alone.keys() & beside.keys()
    assert len(common) > 100
    assert all(torch.equal(alone[prefix], beside[prefix]) for prefix in common)
