"""Every size of tiles of queries that a pass may have is tried at load."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from draftwire_core.engine.kernels.kv_rows import STORED
from draftwire_core.engine.model.cuda.kernels import attention_trial
from draftwire_core.engine.model.cuda.kernels.attention import attend_slots, tiles_of
from draftwire_core.engine.model.cuda.kernels.attention_trial import AttentionKind, equal_tiles

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

CPU = torch.device("cpu")
KINDS = {
    "plain": AttentionKind(8, 2, 16, 0.25, None, None),
    "window and softcap": AttentionKind(4, 2, 8, 0.4, 70, 5.0),
    "as many key-value heads as query heads": AttentionKind(2, 2, 16, 0.25, None, None),
}


def tried(kind: AttentionKind, monkeypatch: pytest.MonkeyPatch, wrong: int | None = None) -> tuple[list[int], Any]:
    """Returns the sizes that are tried, and those found equal. wrong: a size that gives other bits."""
    sizes: list[int] = []

    def noted(work: Any, query: Any, keys: Any, values: Any, out: torch.Tensor, *about: Any, tiles: Any) -> None:
        sizes.extend(tiles)
        out.fill_(tiles[0] == wrong)

    monkeypatch.setattr(attention_trial, "attend_slots", noted)
    return sizes, equal_tiles(kind, torch.float32, CPU)


def test_all_that_passes_may_reach_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    for group in range(1, 65):
        sizes, found = tried(AttentionKind(group, 1, 16, 0.25, None, None), monkeypatch)
        reachable = {
            next((size for size in tiles_of(group) if size >= rows * group), tiles_of(group)[-1])
            for rows in range(1, 1025)
        }
        assert reachable == set(found)
        assert set(sizes) == (reachable if len(reachable) > 1 else set())
        assert len(sizes) <= 2, "two kernels each"


def test_a_size_that_gives_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(KINDS["plain"], monkeypatch, wrong=16) == ([32, 16], (32,))


@pytest.mark.parametrize("name", KINDS)
def test_attention_in_the_interpreter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows have the same bits in all tiles, and are attention."""
    kind, outs = KINDS[name], {}

    def noted(work: Any, query: Any, keys: Any, values: Any, out: torch.Tensor, *about: Any, tiles: Any) -> None:
        attend_slots(work, query, keys, values, out, *about, tiles=tiles)
        if not outs:
            outs["expected"] = in_float64(kind, query, keys, values)
            assert (out.double() - outs["expected"]).abs().max() < 1e-4
        assert out.isfinite().all() and len(out) == tiles[0] // (kind.heads // kind.kv_heads)

    monkeypatch.setattr(attention_trial, "attend_slots", noted)
    assert equal_tiles(kind, torch.float32, CPU) == (16, 32)


def test_keys_and_values_of_8_bits_are_tried_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    types: set[torch.dtype] = set()

    def noted(work: Any, query: Any, keys: Any, values: Any, *about: Any, tiles: Any) -> None:
        types.update((keys.dtype, values.dtype))
        attend_slots(work, query, keys, values, *about, tiles=tiles)

    monkeypatch.setattr(attention_trial, "attend_slots", noted)
    assert equal_tiles(AttentionKind(4, 2, 32, 0.25, None, None), torch.float32, CPU, "q8_0") == (16, 32)
    assert types == {STORED}


def in_float64(kind: AttentionKind, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The attention of rows whose positions are the last ones."""
    group, count = kind.heads // kind.kv_heads, len(query)
    wide = [each.double().repeat_interleave(group, 1) for each in (keys, values)]
    scores = torch.einsum("rhd,nhd->rhn", query.double(), wide[0]) * kind.scaling
    if kind.softcap is not None:
        scores = kind.softcap * (scores / kind.softcap).tanh()
    at, position = torch.arange(len(keys)), torch.arange(len(keys) - count, len(keys))[:, None]
    visible = (at <= position) & (at > position - (kind.window or len(keys)))
    return torch.einsum("rhn,nhd->rhd", scores.where(visible[:, None], -torch.inf).softmax(-1), wide[1])
