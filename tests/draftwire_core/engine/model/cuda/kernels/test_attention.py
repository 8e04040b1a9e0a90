"""Attention by slots, in Triton's interpreter."""

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from draftwire_core.engine.kernels.kv_rows import rounded, widened
from draftwire_core.engine.model.cuda.kernels.attention_sum import BLOCK_PARTS
from draftwire_core.engine.model.cuda.slots.slot_batch import BatchRoom
from draftwire_core.engine.model.cuda.slots.slot_layout import SlotLayout
from draftwire_core.engine.model.cuda.work import slot_work
from draftwire_core.engine.model.cuda.work.parts import LONG, LONG_FROM, SHORT, part_of
from draftwire_core.engine.model.packed_batch import BatchBuilder
from tests.harness.kernels.attended import CPU, by_kernels, chain, in_float64

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

BOUND = {torch.float32: 5e-6, torch.bfloat16: 0.02}
"""Of the difference from float64; values are around 1. In bfloat16 weights are rounded as well as outputs."""
SLOTS = 1500
HEADS, KV_HEADS, DIM = 4, 2, 16
SCALING = 0.4
KINDS = {
    "plain": {},
    "window": {"window": 70},
    "window within a tile": {"window": 3},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([1.0, -2.0, 4.0, 0.0])},
    "all": {"window": 600, "softcap": 5.0, "sinks": torch.tensor([1.0, -2.0, 4.0, 0.0])},
}


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def stored(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return draw(SLOTS, KV_HEADS, DIM, dtype=dtype, seed=1), draw(SLOTS, KV_HEADS, DIM, dtype=dtype, seed=2)


def scattered(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.arange(1, SLOTS))[:count]


def tree(builder: BatchBuilder, path: np.ndarray, branch: np.ndarray) -> None:
    """A sequence of path[:-3], with the tree of three more slots and a branch of two below the first of them."""
    rows = chain(builder, path, 3)
    below = [builder.add_row(0, len(path) - 2 + index, int(slot), True) for index, slot in enumerate(branch)]
    builder.add_lane(builder._lanes[-1].context, [rows[0], *below], 1)


def check_rows(kind: str, dtype: torch.dtype, lengths: tuple[int, int, int, int], **changes: int) -> None:
    """lengths: of a tree's path, a prompt without a context, the next rows of one, and a plain step's context."""
    options = KINDS[kind] | changes
    keys, values = stored(dtype)
    builder = BatchBuilder()
    path, prompt, chunk, context = lengths
    parts = np.split(scattered(1200), np.cumsum([path, 2, prompt, 2 * chunk + 10, context]))
    tree(builder, parts[0], parts[1])
    chain(builder, parts[2], prompt)
    chain(builder, parts[3], chunk)
    chain(builder, parts[4], 1)
    batch = builder.build(HEADS // KV_HEADS, CPU)
    query = draw(len(batch), HEADS, DIM, dtype=dtype)
    found = by_kernels(batch, query, keys, values, SCALING, **options)
    expected = in_float64(batch, query, keys, values, SCALING, **options)
    assert (found.double() - expected).abs().max() < BOUND[dtype]


@pytest.mark.parametrize("kind", [*KINDS])
def test_rows_of_prompts_trees_and_plain_steps(kind: str) -> None:
    """Of one part and two, in one tile of queries and two."""
    changes = {"window": 260} if kind == "all" else {}
    check_rows(kind, torch.float32, (SHORT + 8, 18, 9, SHORT + 5), **changes)


def test_rows_of_bfloat16() -> None:
    check_rows("all", torch.bfloat16, (SHORT + 8, 9, 3, 70), window=260)


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "value_dim"), [(3, 3, 8, 8), (6, 2, 40, 24), (36, 1, 16, 16)])
def test_shapes_of_heads(heads: int, kv_heads: int, dim: int, value_dim: int) -> None:
    keys, values = draw(80, kv_heads, dim, seed=1), draw(80, kv_heads, value_dim, seed=2)
    builder = BatchBuilder()
    chain(builder, np.arange(79, 2, -1), 9)
    batch = builder.build(heads // kv_heads, CPU)
    query = draw(9, heads, dim)
    found = by_kernels(batch, query, keys, values, SCALING)
    assert (found.double() - in_float64(batch, query, keys, values, SCALING)).abs().max() < BOUND[torch.float32]


def check_batch_invariance(
    kind: str, dtype: torch.dtype, length: int, chunks: tuple[int, ...], others: tuple[int, ...], **changes: int
) -> None:
    """The last of some tokens has the same bits in prompts of any chunks, beside others, and as a node of a tree."""
    options = KINDS[kind] | changes
    keys, values = stored(dtype)
    slots = scattered(700)
    path = slots[:length]
    query = draw(1, HEADS, DIM, dtype=dtype)
    found: dict[str, Tensor] = {}

    def attend(name: str, builder: BatchBuilder, row: int, room: BatchRoom | None = None) -> None:
        queries = draw(len(builder), HEADS, DIM, dtype=dtype, seed=len(found))
        queries[row] = query
        batch = builder.build(HEADS // KV_HEADS, CPU)
        found[name] = by_kernels(batch, queries, keys, values, SCALING, **options, room=room)[row]

    for rows in (1, *chunks):
        builder = BatchBuilder()
        chain(builder, path, rows)
        attend(f"{rows} rows", builder, rows - 1)
    builder = BatchBuilder()
    chain(builder, path, 1)
    attend("in larger tensors", builder, 0, BatchRoom.of_step(8, 4096))
    for count in others:
        builder = BatchBuilder()
        for index in range(count):
            chain(builder, slots[7 * index : 30 * index + 9], 1)
        chain(builder, path, 1)
        chain(builder, slots[600:690], chunks[-1] // 2)
        attend(f"beside {count}", builder, count)
    builder = BatchBuilder()
    tree(builder, path, slots[600:602])
    attend("in a tree", builder, 2)
    builder = BatchBuilder()
    tree(builder, np.concatenate([path[:-1], slots[650:652]]), path[-1:])  # below the first of the tree
    attend("on a branch", builder, 3)
    assert all(torch.equal(each, found["1 rows"]) for each in found.values())


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    check_batch_invariance("all", torch.float32, SHORT + 40, (2, 17), (3,), window=270)


@pytest.mark.parametrize("window", [None, 300])
def test_contexts_of_more_parts_than_are_added_up_at_once(window: int | None) -> None:
    length = LONG_FROM + 9 * LONG + 100
    assert part_of(length) > BLOCK_PARTS
    keys, values = draw(length + 1, 1, DIM, seed=1), draw(length + 1, 1, DIM, seed=2)
    path = np.arange(length, 0, -1)
    query = draw(2, 2, DIM)
    found = []
    for rows in (1, 2):
        builder = BatchBuilder()
        chain(builder, path, rows)
        batch = builder.build(2, CPU)
        found.append(by_kernels(batch, query[-rows:], keys, values, 2 * SCALING, window))
        expected = in_float64(batch, query[-rows:], keys, values, 2 * SCALING, window)
        assert (found[-1].double() - expected).abs().max() < BOUND[torch.float32]
    assert torch.equal(found[0][0], found[1][1])


def test_slots_in_stretches_or_scattered() -> None:
    keys, values = stored(torch.float32)
    slots = scattered(300)
    builder = BatchBuilder()
    chain(builder, slots, 4)
    query = draw(4, HEADS, DIM)
    found = by_kernels(builder.build(2, CPU), query, keys, values, SCALING)
    in_order = np.arange(1, 301)
    moved = [torch.zeros_like(each).index_copy_(0, torch.from_numpy(in_order), each[slots]) for each in (keys, values)]
    builder = BatchBuilder()
    chain(builder, in_order, 4)
    assert torch.equal(by_kernels(builder.build(2, CPU), query, *moved, SCALING), found)


def test_rounds_of_partial_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, values = stored(torch.float32)
    builder = BatchBuilder()
    slots = scattered(400)
    for _ in range(3):
        chain(builder, slots[: SHORT + 20], 1)
    tree(builder, slots[300:360], slots[360:362])
    batch = builder.build(2, CPU)
    query = draw(len(batch), HEADS, DIM)
    whole = by_kernels(batch, query, keys, values, SCALING)
    monkeypatch.setattr(slot_work, "MOST_PARTIALS", 5)
    rounds = SlotLayout.of(batch).rounds
    assert len(rounds) == 3 and all(each.partials <= 5 for each in rounds)
    room = BatchRoom.of_layout(16, SlotLayout.of(batch))
    assert torch.equal(by_kernels(batch, query, keys, values, SCALING), whole)
    assert torch.equal(by_kernels(batch, query, keys, values, SCALING, room=room), whole)


def test_a_bad_key_spoils_the_rows_that_see_it() -> None:
    keys, values = stored(torch.float32)
    slots = scattered(100)
    keys[int(slots[80])] = torch.nan
    builder = BatchBuilder()
    chain(builder, slots[:90], 15)
    chain(builder, slots[:70], 3)
    query = draw(18, HEADS, DIM)
    found = by_kernels(builder.build(2, CPU), query, keys, values, SCALING)
    bad = found.isnan().all(-1).all(-1)
    assert bad.tolist() == [75 + row >= 80 for row in range(15)] + [False] * 3
    assert found[~bad].isfinite().all()


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(("dim", "value_dim"), [(32, 64), (96, 32)])
def test_keys_and_values_of_8_bits(dim: int, value_dim: int, dtype: torch.dtype) -> None:
    """They are what the same numbers in the queries' type are, to the bit."""
    keys, values = rounded(draw(100, KV_HEADS, dim, seed=1)), rounded(draw(100, KV_HEADS, value_dim, seed=2))
    builder = BatchBuilder()
    slots = np.random.default_rng(0).permutation(np.arange(1, 100))
    chain(builder, slots[:70], 2)
    tree(builder, slots[70:90], slots[90:92])
    batch = builder.build(HEADS // KV_HEADS, CPU)
    query = draw(len(batch), HEADS, dim, dtype=dtype)
    found = by_kernels(batch, query, keys, values, SCALING, 40)
    expected = by_kernels(batch, query, widened(keys).to(dtype), widened(values).to(dtype), SCALING, 40)
    assert found.isfinite().all() and torch.equal(found, expected)


@pytest.mark.slow
class TestLong:
    """Contexts of three parts in all kinds and types."""

    @pytest.mark.parametrize("dtype", BOUND)
    @pytest.mark.parametrize("kind", KINDS)
    def test_rows_of_prompts_trees_and_plain_steps(self, kind: str, dtype: torch.dtype) -> None:
        check_rows(kind, dtype, (603, 30, 20, 510))

    @pytest.mark.parametrize("dtype", BOUND)
    @pytest.mark.parametrize("kind", ["plain", "all"])
    def test_a_row_has_the_same_bits_in_any_batch(self, kind: str, dtype: torch.dtype) -> None:
        check_batch_invariance(kind, dtype, 600, (2, 9, 17, 64, 65), (1, 8))
