"""Calls of torch's attention kernel for GPUs, and the use of its results.

The kernel does not run on CPUs. A stand-in implements its documentation and is called with the installed torch's
signature.
"""

import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch.nn.attention import varlen

from speculative_engine.model.attention import varlen_attention
from speculative_engine.model.cuda.bucketed_attention import attend_bucket
from speculative_engine.model.cuda.bucketed_batch import BucketedBatch
from speculative_engine.model.cuda.step_buckets import Bucket, StepBuckets
from tests.harness.engine.engines import check_against_plain, packed, random_tokens, tiny_model, walk
from tests.harness.engine.random_work import CPU, ragged_batch, stored

SIGNATURE = inspect.signature(varlen.varlen_attn)


def documented(by_head: bool, unseeing: float) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The kernel by its documentation. Versions differ in `by_head` and in rows without keys (`unseeing`)."""

    def attend(*args: object, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        asked = SIGNATURE.bind(*args, **options).arguments
        query, key, value = asked["query"], asked["key"], asked["value"]
        first_rows, first_keys = asked["cu_seq_q"], asked["cu_seq_k"]
        assert first_rows.dtype == first_keys.dtype == torch.int32 and asked["return_aux"].lse and asked["enable_gqa"]
        rows, heads, _ = query.shape
        assert asked["num_splits"] >= 1  # None lets the kernel choose
        assert asked["max_q"] == rows and asked["max_k"] == len(key) and first_rows[-1] == rows
        out, weight = torch.zeros(rows, heads, value.shape[2]), torch.full((rows, heads), unseeing)
        for index in range(len(first_rows) - 1):
            begin, end = first_keys[index : index + 2].tolist()
            for row in range(*first_rows[index : index + 2].tolist()) if end > begin else ():
                shared = heads // key.shape[1]
                for head in range(heads):
                    scores = key[begin:end, head // shared] @ query[row, head] * asked["scale"]
                    out[row, head] = scores.softmax(0) @ value[begin:end, head // shared]
                    weight[row, head] = scores.logsumexp(0)
        return out, weight.t().contiguous() if by_head else weight

    return attend


@pytest.fixture(params=[(True, torch.inf), (True, -torch.inf), (False, 0.0)], ids=["inf", "-inf", "by row"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replaces the real kernel by the documented one."""
    options = varlen_attention._options()
    varlen_attention._by_head.cache_clear()
    monkeypatch.setattr(varlen_attention, "_options", lambda: options)
    monkeypatch.setattr(varlen, "varlen_attn", documented(*request.param))
    monkeypatch.setattr(
        varlen_attention, "fits", lambda keys, values, window, softcap: window is None and softcap is None
    )
    yield
    varlen_attention._by_head.cache_clear()


def test_the_installed_torch_has_the_options_that_are_asked_for() -> None:
    options = varlen_attention._options()
    assert options is not None and {"scale", *options} <= SIGNATURE.parameters.keys()


def test_nothing_but_a_gpu_runs_it() -> None:
    assert not varlen_attention.fits(*[torch.zeros(1, 4, 64, dtype=torch.bfloat16)] * 2, None, None)


@pytest.mark.parametrize(("capability", "runs"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_must_be_new_enough(capability: tuple[int, int], runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    keys = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, shape=(2, 4, 64))
    assert varlen_attention.fits(cast(torch.Tensor, keys), cast(torch.Tensor, keys), None, None) == runs


@pytest.mark.parametrize(
    ("ranges", "keys", "splits"), [(1, 1024, 4), (1, 65536, 16), (4, 65536, 4), (64, 65536, 1), (1, 100, 1)]
)
def test_few_ranges_have_their_keys_split(ranges: int, keys: int, splits: int) -> None:
    assert varlen_attention.split_count(ranges, 8, keys, 132) == splits


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("bucket", [Bucket(17, 149), Bucket(32, 200)], ids=["full", "padded"])
def test_ranges_of_rows_see_their_ranges_of_keys(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = BucketedBatch(bucket, CPU)
    fixed.fill(ragged_batch(3))
    keys, values = stored(2, 32, 1), stored(2, 32, 2)
    query = torch.randn(6, bucket.rows, 32)
    new = keys[:, fixed.slots], values[:, fixed.slots]
    found = attend_bucket(fixed, query, new, (keys, values), 0.3, None, None, torch.randn(6).mul_(0))
    monkeypatch.undo()
    expected = attend_bucket(fixed, query, new, (keys, values), 0.3, None, None, torch.zeros(6))
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-5)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("window", "asks"), [(180, True), (181, True), (179, False)])
def test_a_window_longer_than_all_there_is_hides_nothing(
    window: int, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = BucketedBatch(Bucket(20, 160), CPU)
    fixed.fill(ragged_batch(1))
    keys, values = stored(2, 32, 1), stored(2, 32, 2)
    query, new = torch.randn(2, 20, 32), (keys[:, fixed.slots], values[:, fixed.slots])
    asked: list[int] = []
    attend = varlen_attention.attend_ranges
    monkeypatch.setattr(varlen_attention, "attend_ranges", lambda *args: (asked.append(1), attend(*args))[1])
    found = attend_bucket(fixed, query, new, (keys, values), 0.3, window, None, None)
    assert bool(asked) == asks
    expected = attend_bucket(fixed, query, new, (keys, values), 0.3, None, None, None)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-5)


@pytest.mark.usefixtures("kernel")
def test_a_model_runs_over_it() -> None:
    model = tiny_model("Llama")
    bucketed = packed(model, buckets=StepBuckets(rows=(1, 4, 16), keys=(64, 256)))
    rows = walk(bucketed, [random_tokens(24, seed=1), random_tokens(7, seed=2)], [15, 1], seed=1)
    assert check_against_plain(model, rows) < 1e-4
